"""The built-in topologies, one family a file. Add a file with a `@register("name")` builder: nothing else to edit."""
