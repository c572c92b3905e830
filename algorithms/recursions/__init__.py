"""The algorithms, one a file. Add a file with a `@register("name")` dataclass: nothing else to edit."""
