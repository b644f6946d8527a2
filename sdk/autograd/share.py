"""One process's share of a distributed backward pass.

Received gradients are queued by the thread that received them; one thread at a time works on them.
A receiver replies at once if its share is busy or if it began the pass, so a cycle of workers never
waits for itself. A share that is done reports so with the last gradient it sends, in a reply, or in
a report of its own. The receiver forwards the report until it reaches the initiator of the pass.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np

from gradmesh.engine.autograd import BackwardScope, GradientEntry, LocalPass
from gradmesh.protos import limits
from gradmesh.protos.autograd.v1 import autograd_pb2 as pb
from gradmesh.protos.errors import BackwardAborted, MeshError
from gradmesh.protos.frame import Frame
from gradmesh.protos.limits import check_text
from gradmesh.protos.method import methods_of
from gradmesh.sdk.autograd.calls import PassCalls
from gradmesh.sdk.autograd.codec import pack_gradients, unpack_gradients
from gradmesh.sdk.autograd.current import bound, running_share
from gradmesh.sdk.transport.channel import PendingCall
from gradmesh.sdk.transport.deadline import Deadline

if TYPE_CHECKING:
    from gradmesh.sdk.autograd.context import Context
    from gradmesh.sdk.autograd.messages import RecvRecord, SendRecord

METHODS = methods_of(pb.DESCRIPTOR.services_by_name["AutogradService"])
"""The rpcs of a backward pass by name."""


Returned: TypeAlias = tuple[int, list[Any]]
"""Count of a message, and the gradients of its tensors."""


@final
class BackwardShare:
    """Run one process's share of one pass.

    Args:
        ctx: The context.
        head: The pass.
        deadline: Of the whole pass.

    Attributes:
        changed: Notified when gradients or reports arrive, or the share is done.
        error: Why the share was aborted; None while it was not.
        done: Whether nothing is left to do here.
        engaged: Workers that this process sent gradients to.
        pushed: Gradients of rows that were sent: address of the server, and number of the lookup.
        finished: Shares of other workers that are done, by worker, reported here and not forwarded.
    """

    def __init__(self, ctx: "Context", head: pb.Pass, deadline: Deadline) -> None:
        self.ctx = ctx
        self.head = head
        self.deadline = deadline
        # Guards all below but _engine, which only the working thread uses. Faster than the
        # condition.
        self._lock = threading.Lock()
        self.changed = threading.Condition(self._lock)
        self.error: BaseException | None = None
        self.done = False
        self.finished: dict[str, pb.FinishedPart] = {}
        self._reported = False
        self._busy = False
        self._arrived: list[tuple[int, Sequence[Any]]] = []
        self._seen: set[int] = set()
        self._plan: pb.Plan | None = None
        self._expected: dict[int, SendRecord] = {}
        self._engine: LocalPass | None = None
        self._under_way = BackwardScope(ctx.map)
        self._calls = PassCalls(ctx, deadline)
        self.pushed: list[tuple[str, int]] = []
        # The worker whose call the working thread serves, and the gradients that its reply takes.
        self._caller: str | None = None
        self._returned: list[Returned] = []
        self._answers: dict[int, list[Returned]] = {}
        self.engaged: set[str] = set()

    @property
    def settled(self) -> bool:
        """Whether the share is done, or has reported so with its last gradient."""
        return self.done or self._reported

    @property
    def is_initiator(self) -> bool:
        """Whether this process is the initiator of the pass."""
        return self.head.initiator.name == self.ctx.worker

    def has_seen(self, count: int) -> bool:
        """Return whether the gradients of a message have arrived before."""
        with self._lock:
            return count in self._seen

    def add_gradients(
        self,
        count: int,
        grads: Sequence[Any],
        plan: pb.Plan | None = None,
        finished: Iterable[pb.FinishedPart] = (),
    ) -> bool:
        """Queue the gradients of a sent message; return whether a thread has to `work` now.

        A repetition changes nothing.

        Raises:
            BackwardAborted: The pass was aborted.
        """
        with self._lock:
            if self.error is not None:
                raise self._aborted()
            self._keep_finished(finished)
            if plan is not None and self._plan is None:
                self._plan = plan
            if count not in self._seen:
                self._seen.add(count)
                self._arrived.append((count, grads))
            self.changed.notify_all()
            known = self._plan is not None or self.head.mode == pb.PASS_MODE_FAST
            if self.is_initiator or self._busy or not known or not self._arrived:
                return False
            self._busy = True
            return True

    def begin(self, plan: pb.Plan | None, roots: GradientEntry | None = None) -> LocalPass:
        """Find the local work of the pass; a second call changes nothing.

        Args:
            plan: Which sends take part; None for all.
            roots: The roots of the pass, on its initiator.

        Raises:
            SendNotFound: The plan names a message that was never sent.
        """
        if self._engine is not None:
            return self._engine
        messages = self.ctx.messages
        if plan is None:
            sent = messages.all_sent()
        else:
            mine = [s.messages for s in plan.sends if s.worker.name == self.ctx.worker]
            sent = [messages.find(count) for counts in mine for count in counts]
        with self._lock:
            self._plan = plan
            self._expected = {one.count: one for one in sent}
        entries = [one.entry for one in sent]
        if roots is not None:
            entries.insert(0, roots)
        self._engine = LocalPass(entries, retain_graph=self.head.retain_graph, into=self.ctx.map)
        if roots is not None:
            seeds = [np.ones(shape, dtype) for shape, dtype in roots.tensors]
            self._engine.feed(roots, seeds)
        return self._engine

    def answer(self, count: int, caller: str) -> list[Returned]:
        """Work while a call waits; return the gradients that its reply takes.

        Args:
            count: The message whose gradients the call carried.
            caller: Name of the caller.

        Raises:
            BaseException: What failed, here or with a message to another worker.
        """
        self._caller, self._returned = caller, []
        try:
            self.work()
        finally:
            self._caller = None
        with self._lock:
            self._answers[count] = self._returned
            self.changed.notify_all()
        return self._returned

    def earlier_answer(self, count: int, deadline: Deadline) -> list[Returned]:
        """Return the answer to a repeated call, once it is known or the call's time is over."""
        with self._lock:
            known = lambda: count in self._answers or not self._busy  # noqa: E731
            left_s = min(deadline.remaining_s(), self.deadline.remaining_s())
            self.changed.wait_for(known, left_s)
            return self._answers.get(count, [])

    def work(self) -> None:
        """Run all work that is ready; called by one thread at a time.

        Raises:
            BaseException: What failed, here or with a message to another worker.
        """
        engine = self.begin(self._plan)
        while True:
            with self._lock:
                if self.error is not None:
                    raise self._aborted()
                inbox, self._arrived = self._arrived, []
            for count, grads in inbox:
                if count in self._expected:
                    engine.feed(self._expected[count].entry, grads)
            with bound(self.ctx), running_share(self), self._under_way:
                engine.run()
            self._collect()
            if engine.left == 0 and not self.done:
                self._end(engine)
            with self._lock:
                if self.error is not None:
                    raise self._aborted()
                if self.done or not self._arrived:
                    self._busy = False
                    return

    def _end(self, engine: LocalPass) -> None:
        """Finish the share and run its callbacks."""
        with bound(self.ctx):
            self._under_way.finish()
        with self._lock:
            if self.error is not None:
                raise self._aborted()
            self.done = True
            self.changed.notify_all()
        engine.release_graph()

    def run_locally(self, run: Callable[[], None]) -> None:
        """Run a pass that no other worker's gradients enter, by the engine's fastest path."""
        held = dict(self.ctx.map)
        try:
            with bound(self.ctx), running_share(self):
                run()
            self._collect()
        except BaseException:
            self.ctx.map.clear()
            self.ctx.map.update(held)
            raise
        with self._lock:
            self.done = True

    def send_back(self, message: "RecvRecord", grads: list[Any]) -> None:
        """Send the gradients of a message to its sender, without waiting."""
        if self.error is not None:
            raise self._aborted()
        fast = self.head.mode == pb.PASS_MODE_FAST
        if fast:
            zeros = zip(grads, message.like, strict=True)
            grads = [np.zeros(*like) if grad is None else grad for grad, like in zeros]
        if message.sender == self.ctx.worker:
            self._put_here(message.count, grads)
            return
        if message.sender == self._caller:
            self.engaged.add(message.sender)
            self._returned.append((message.count, grads))
            return
        described, arrays = pack_gradients(grads)
        request = pb.SendGradientsRequest(
            backward_pass=self.stamped_head(),
            message=message.count,
            incarnation=self.ctx.messages.worker(message.sender).incarnation,
            gradients=described,
            plan=self._plan if message.sender not in self.engaged else None,
        )
        self.engaged.add(message.sender)
        if self._is_last():
            request.finished.extend(self.take_finished())
        self._calls.send(message.sender, METHODS["SendGradients"], Frame(request, arrays))

    def _put_here(self, count: int, grads: Sequence[Any]) -> None:
        with self._lock:
            if count not in self._seen:
                self._seen.add(count)
                self._arrived.append((count, grads))

    def _is_last(self) -> bool:
        """Return whether the gradient that is sent now was all that was left to do here."""
        engine = self._engine
        quiet = engine is not None and engine.left == 0 and not self._under_way.has_callbacks
        return quiet and not self.is_initiator

    def take_finished(self) -> list[pb.FinishedPart]:
        """Return the shares to report: those reported here, and this one, once it is done."""
        with self._lock:
            found, self.finished = list(self.finished.values()), {}
            if not self._reported:
                self._reported = True
                engaged = self.engaged if self.head.mode == pb.PASS_MODE_FAST else ()
                found.append(pb.FinishedPart(worker=self.ctx.worker, engaged=sorted(engaged)))
            return found

    def has_report(self) -> bool:
        """Return whether this share is done and it, or another, was not reported yet."""
        with self._lock:
            return self.done and (not self._reported or bool(self.finished))

    def add_call(self, call: PendingCall, pushed: tuple[str, int]) -> None:
        """Track a call to a parameter server.

        Args:
            call: It carries gradients of rows.
            pushed: Address of the server, and number of the lookup.
        """
        self._calls.add(call)
        self.pushed.append(pushed)

    def _collect(self) -> None:
        """Wait for the replies to what was sent.

        Raises:
            MeshError: A worker could not be reached; the first failure.
        """
        failure = self._calls.collect(self._take)
        if self.error is not None:
            raise self._aborted()
        if failure is not None:
            raise failure

    def _take(self, answer: Frame[pb.SendGradientsResponse]) -> None:
        """Process the gradients and reports in a reply."""
        response = answer.message
        if response.returned:
            own = iter(answer.arrays)
            for returned in response.returned:
                grads = unpack_gradients(returned.gradients, own)
                self.ctx.messages.find(returned.message).entry.check(grads)
                self._put_here(returned.message, grads)
        if response.finished:
            self.add_finished(response.finished)

    def add_finished(self, finished: Iterable[pb.FinishedPart]) -> None:
        """Store reports of shares that are done."""
        with self._lock:
            self._keep_finished(finished)
            self.changed.notify_all()

    def _keep_finished(self, finished: Iterable[pb.FinishedPart]) -> None:
        """Store reports; the lock is held.

        Raises:
            LimitExceeded: They name more workers than a context has.
        """
        for share in finished:
            if share.worker not in self.finished:
                limits.WORKERS_OF_CONTEXT.check(len(self.finished))
                check_text("name of a worker", share.worker, limits.MAX_NAME_BYTES)
            self.finished[share.worker] = share

    def has_work(self) -> bool:
        """Return whether gradients are queued; `changed` is held."""
        return bool(self._arrived)

    def fail(self, error: BaseException) -> None:
        """Wake the initiator: another share failed."""
        with self._lock:
            if self.error is None:
                self.error = error
                self._calls.cancel()
            self.changed.notify_all()

    def abort(self, error: BaseException) -> list[str]:
        """Abort the share and undo what it accumulated; return what it was waiting for."""
        with self._lock:
            if self.error is not None:
                return []
            self.error = error
            self._calls.cancel()
            waiting = [
                sent.describe(self.ctx.worker)
                for count, sent in self._expected.items()
                if count not in self._seen
            ]
            self._arrived.clear()
            # A working thread undoes what it accumulated by itself.
            undo = self._engine if not self._busy else None
            self.changed.notify_all()
        if undo is not None:
            undo.undo()
            undo.release_graph()
        return waiting

    def roll_back(self) -> None:
        """Undo what an aborted share accumulated; called by the thread that worked on it."""
        with self._lock:
            self._busy = False
        if self._engine is not None:
            self._engine.undo()
            self._engine.release_graph()

    def _aborted(self) -> BackwardAborted:
        why = self.error.message if isinstance(self.error, MeshError) else str(self.error)
        return BackwardAborted(f"{self.name} was aborted: {why}", worker=self.ctx.worker)

    @property
    def name(self) -> str:
        """Name of the pass, for messages."""
        head = self.head
        return f"backward {head.number} of {head.initiator.name} in {self.ctx}"

    def stamped_head(self) -> pb.Pass:
        """Return the pass with its remaining time."""
        self.head.remaining_ms = max(1, int(self.deadline.remaining_s() * 1000))
        return self.head
