"""Answers that come later: no thread waits for them here, and they are brought to their callers."""

import threading
from collections.abc import Callable, Iterable
from typing import final

from gradmesh.protos.errors import MeshError
from gradmesh.protos.owner.v1 import owner_pb2 as pb
from gradmesh.sdk.future import Future
from gradmesh.sdk.rpc.reply import Reply
from gradmesh.sdk.rpc.rref.control import Control
from gradmesh.sdk.rpc.rref.ids import Worker
from gradmesh.sdk.rpc.threads import Task
from gradmesh.sdk.transport.deadline import Deadline


@final
class Answers:
    """The calls of others that this worker still owes an answer.

    Args:
        me: The worker.
        control: Brings answers to the callers.
        run: Runs a task on a thread.
    """

    def __init__(self, me: Worker, control: Control, run: Callable[[Task], None]) -> None:
        self._me = me
        self._control = control
        self._run = run
        self._changed = threading.Condition()  # guards _owed
        self._owed: set[tuple[Worker, int]] = set()

    def defer(
        self,
        caller: Worker,
        call_id: int,
        reply: Future[Reply],
        fail: Callable[[BaseException], Reply],
    ) -> None:
        """Bring an answer to its caller when it is there.

        Args:
            caller: Who asked.
            call_id: The caller's count.
            reply: The answer.
            fail: Makes the answer of what went wrong.
        """
        owed = (caller, call_id)
        with self._changed:
            self._owed.add(owed)

        def deliver() -> None:
            try:
                error = reply.exception()
                answer = reply.value() if error is None else fail(error)
                self._control.deliver(
                    "Deliver", caller, answer.delivered(caller, call_id, self._me)
                )
            finally:
                with self._changed:
                    self._owed.discard(owed)
                    self._changed.notify_all()

        def bring(_: Future[Reply]) -> None:
            try:
                self._run(deliver)
            except MeshError:
                deliver()  # no thread is left; this one has time

        reply.add_done_callback(bring)

    def unknown(self, caller: Worker, call_ids: Iterable[int]) -> list[int]:
        """Return which of a caller's calls nobody here is going to answer."""
        with self._changed:
            return [count for count in call_ids if (caller, count) not in self._owed]

    def wait_idle(self, deadline: Deadline, but: Callable[[], int] = lambda: 0) -> bool:
        """Wait until nothing is owed, but so many answers."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._owed) <= but(), deadline.remaining_s())

    def __len__(self) -> int:
        return len(self._owed)


def caller_of(
    message: pb.CallRequest | pb.CreateRefRequest | pb.FetchRefRequest | pb.DescribeRefRequest,
) -> Worker | None:
    """Return who asks, if an answer can be brought there later."""
    if not message.HasField("caller") or not message.call_id:
        return None
    return Worker(message.caller.name, message.caller.incarnation)
