"""Under which name a caller's share of a bounded store is counted."""

from gradmesh.protos.rpcs import ADMIN
from gradmesh.sdk.transport.call import Caller


def account_of(caller: Caller) -> str:
    """Return the name that what a caller keeps here is counted under.

    A member has its own. Callers that are not members share one for each role. Admins, and the
    callers of a cluster without authentication, are bounded by the total only: the first may do
    anything, the others can choose any name.
    """
    if caller.name:
        return caller.name
    return f"role {caller.role}" if caller.is_authenticated and caller.role != ADMIN else ""
