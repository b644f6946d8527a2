"""What a caller may do with a failed call."""

from enum import Enum


class Retry(Enum):
    """What a caller may do with a failed call."""

    NEVER = "never"
    """The same call fails again."""
    CALL = "same call, with backoff"
    """The same call may succeed a little later."""
    REFRESH = "after a refresh"
    """Fetch newer state, then begin again from a higher level."""
