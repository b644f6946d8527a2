"""What a reader refuses; never on the wire."""


class ReadOnly(PermissionError):
    """A reader was asked to change rows; connect with `gm.connect` to do that."""
