"""The default process group, used where no group is given, and sub-groups of equal size.

Only `init_process_group` sets it and only `destroy_process_group` unsets it; `connect` does not
change it, so groups that a library or a test creates never become the default.
"""

import threading

from gradmesh.trainer.errors import NoDefaultGroup
from gradmesh.trainer.process_group.backend import Backend, connect
from gradmesh.trainer.process_group.peer.rendezvous import Endpoint
from gradmesh.trainer.process_group.process_group import ProcessGroup
from gradmesh.trainer.process_group.store import Store

_lock = threading.Lock()  # guards _default, also while ranks connect
_default: ProcessGroup | None = None


def init_process_group(
    store: Store,
    *,
    rank: int,
    world_size: int,
    generation: int = 1,
    backend: Backend = "auto",
    endpoint: Endpoint | None = None,
    timeout_s: float | None = None,
) -> ProcessGroup:
    """Connect to the other ranks and make the group the default of this process.

    Args:
        store: See `connect`; a new one for each call.
        rank: See `connect`.
        world_size: See `connect`.
        generation: See `connect`.
        backend: See `connect`.
        endpoint: See `connect`.
        timeout_s: See `connect`.

    Raises:
        ValueError: There is a default group already; it stays.
        CollectiveTimeout: A rank did not connect in time. No default is set then; the same holds
            for the other errors of `connect`.
    """
    global _default
    with _lock:
        if _default is not None:
            raise ValueError(
                f"there is a default process group already, {_default!r}; call"
                " gm.process_group.destroy_process_group() first, or use connect() for another one"
            )
        _default = connect(
            store,
            generation=generation,
            rank=rank,
            world_size=world_size,
            timeout_s=timeout_s,
            backend=backend,
            endpoint=endpoint,
        )
        return _default


def destroy_process_group() -> None:
    """Close the default process group, its sub-groups with it, and unset it.

    Raises:
        NoDefaultGroup: There is none.
    """
    global _default
    with _lock:
        group = _required(_default)
        _default = None
    group.close()


def is_initialized() -> bool:
    """Return whether there is a default process group."""
    return _default is not None


def default_group() -> ProcessGroup:
    """Return the default process group.

    Raises:
        NoDefaultGroup: There is none.
    """
    return _required(_default)


def _required(group: ProcessGroup | None) -> ProcessGroup:
    if group is None:
        raise NoDefaultGroup(
            "this process has no default process group; call"
            " gm.process_group.init_process_group(...) first, or give a process_group"
        )
    return group


def new_subgroups(group_size: int, group: ProcessGroup | None = None) -> ProcessGroup:
    """Split a group into blocks of consecutive ranks; return the one with this rank. Collective.

    Args:
        group_size: Number of ranks of each; divides the size of the group.
        group: The group to split; the default group if None.

    Raises:
        ValueError: If the size does not divide that of the group; on all ranks.
    """
    whole = default_group() if group is None else group
    if group_size < 1 or whole.size % group_size:
        raise ValueError(f"groups of {group_size} cannot be cut from {whole.size} ranks evenly")
    starts = range(0, whole.size, group_size)
    groups = [whole.sub_group(range(start, start + group_size)) for start in starts]
    own = groups[whole.rank // group_size]
    assert own is not None  # for the type checker: this rank is in it
    return own
