"""The built-in topologies, one family a file. Add a file with a `@register("name")` builder: nothing else to edit.

`SHARED` lists the files that register nothing: what several families are built from.
"""

SHARED = ("draws", "rounds", "sizes")
"""Random graphs drawn until they fit; the shapes of rounds; the refusal of a size."""
