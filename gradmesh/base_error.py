"""The base of every exception of gradmesh; without imports, so that every layer can use it.

The public list is `gm.errors`.
"""


class GradmeshError(Exception):
    """Base of every exception that gradmesh raises; the subclasses are builtin errors, too."""
