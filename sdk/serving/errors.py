"""What a reader refuses; never on the wire."""

from gradmesh.base_error import GradmeshError


class ReadOnly(PermissionError, GradmeshError):
    """A reader was asked to change rows; connect with `gm.connect` to do that."""
