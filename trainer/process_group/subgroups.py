"""Groups of equal size, cut from one group."""

from gradmesh.trainer.process_group.default import default_group
from gradmesh.trainer.process_group.process_group import ProcessGroup


def new_subgroups(group_size: int, group: ProcessGroup | None = None) -> ProcessGroup:
    """Cut a group into runs of neighbouring ranks; return the one with this rank. Collective.

    Args:
        group_size: How many ranks each has; divides the size of the group.
        group: What to cut; the default group if None.

    Raises:
        ValueError: If the size does not divide that of the group; on all ranks.
    """
    whole = default_group() if group is None else group
    if group_size < 1 or whole.size % group_size:
        raise ValueError(f"groups of {group_size} cannot be cut from {whole.size} ranks evenly")
    starts = range(0, whole.size, group_size)
    made = [whole.sub_group(range(start, start + group_size)) for start in starts]
    own = made[whole.rank // group_size]
    assert own is not None  # for the type checker: this rank is in it
    return own
