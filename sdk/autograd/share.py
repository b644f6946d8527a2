"""One process's part of a backward pass over several.

Gradients are put in by whoever receives them; one thread at a time works. What a part sends is
confirmed on arrival, never when it has had its effect: no thread waits for a chain of workers. A
part that is over says so with its last gradient, or in a report of its own, and whoever gets that
tells it on, so the worker that began the pass hears of all parts.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np

from gradmesh.engine.autograd import BackwardScope, GradientEntry, LocalPass
from gradmesh.protos.autograd.v1 import autograd_pb2 as pb
from gradmesh.protos.errors import BackwardAborted, MeshError
from gradmesh.protos.frame import Frame
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
    """What one process does for one pass.

    Args:
        ctx: The context.
        head: The pass.
        deadline: Of the whole pass.

    Attributes:
        changed: Notified when gradients or news came, or the part is over.
        error: Why the part was given up; None while it was not.
        over: Whether nothing is left to do here.
        engaged: Workers that got gradients from here.
        brought: Gradients of rows that left: address of the server, and number of the lookup.
        finished: Parts of others that are over, by worker, as far as this one has heard and has
            not told on.
    """

    def __init__(self, ctx: "Context", head: pb.Pass, deadline: Deadline) -> None:
        self.ctx = ctx
        self.head = head
        self.deadline = deadline
        # Guards all below but _engine, which the worker has. Taken by itself it is quicker.
        self._lock = threading.Lock()
        self.changed = threading.Condition(self._lock)
        self.error: BaseException | None = None
        self.over = False
        self.finished: dict[str, pb.FinishedPart] = {}
        self._told = False
        self._busy = False
        self._inbox: list[tuple[int, Sequence[Any]]] = []
        self._seen: set[int] = set()
        self._plan: pb.Plan | None = None
        self._expected: dict[int, SendRecord] = {}
        self._engine: LocalPass | None = None
        self._under_way = BackwardScope(ctx.map)
        self._outbox = PassCalls(ctx, deadline)
        self.brought: list[tuple[str, int]] = []
        # Who gets gradients in the answer to the call that the working thread serves, and these.
        self._asking: str | None = None
        self._returned: list[Returned] = []
        self._answers: dict[int, list[Returned]] = {}
        self.engaged: set[str] = set()

    @property
    def settled(self) -> bool:
        """Whether the part is over, or has said that it is with its last gradient."""
        return self.over or self._told

    @property
    def is_mine(self) -> bool:
        """Whether this process began the pass."""
        return self.head.initiator.name == self.ctx.worker

    def has_seen(self, count: int) -> bool:
        """Tell whether the gradients of a message have come before."""
        with self._lock:
            return count in self._seen

    def put(
        self,
        count: int,
        grads: Sequence[Any],
        plan: pb.Plan | None = None,
        finished: Iterable[pb.FinishedPart] = (),
    ) -> bool:
        """Take the gradients of a message of ours; return whether a thread has to `work` now.

        The same again changes nothing.

        Raises:
            BackwardAborted: The pass was given up.
        """
        with self._lock:
            if self.error is not None:
                raise self._aborted()
            for part in finished:
                self.finished[part.worker] = part
            if plan is not None and self._plan is None:
                self._plan = plan
            if count not in self._seen:
                self._seen.add(count)
                self._inbox.append((count, grads))
            self.changed.notify_all()
            known = self._plan is not None or self.head.mode == pb.PASS_MODE_FAST
            if self.is_mine or self._busy or not known or not self._inbox:
                return False
            self._busy = True
            return True

    def begin(self, plan: pb.Plan | None, roots: GradientEntry | None = None) -> LocalPass:
        """Find out what there is to do here; the second time nothing happens.

        Args:
            plan: Which sends take part; None for all.
            roots: Where the pass begins, on the worker that begins it.

        Raises:
            SendNotFound: The plan speaks of a message that was never sent.
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

    def answer(self, count: int, asking: str) -> list[Returned]:
        """Do what can be done now for a call; return what belongs to the caller.

        Args:
            count: The message whose gradients the call has brought.
            asking: Name of the caller.

        Raises:
            BaseException: Whatever went wrong, here or with a message to another worker.
        """
        self._asking, self._returned = asking, []
        try:
            self.work()
        finally:
            self._asking = None
        with self._lock:
            self._answers[count] = self._returned
            self.changed.notify_all()
        return self._returned

    def former_answer(self, count: int) -> list[Returned]:
        """Return what was answered to a call that is repeated, once it is known."""
        with self._lock:
            known = lambda: count in self._answers or not self._busy  # noqa: E731
            self.changed.wait_for(known, self.deadline.remaining_s())
            return self._answers.get(count, [])

    def work(self) -> None:
        """Do what can be done now; called by one thread at a time.

        Raises:
            BaseException: Whatever went wrong, here or with a message to another worker.
        """
        engine = self.begin(self._plan)
        while True:
            with self._lock:
                if self.error is not None:
                    raise self._aborted()
                inbox, self._inbox = self._inbox, []
            for count, grads in inbox:
                if count in self._expected:
                    engine.feed(self._expected[count].entry, grads)
            with bound(self.ctx), running_share(self), self._under_way:
                engine.run()
            self._collect()
            if engine.left == 0 and not self.over:
                self._end(engine)
            with self._lock:
                if self.error is not None:
                    raise self._aborted()
                if self.over or not self._inbox:
                    self._busy = False
                    return

    def _end(self, engine: LocalPass) -> None:
        """Do what waits for the end of the part."""
        with bound(self.ctx):
            self._under_way.finish()
        with self._lock:
            if self.error is not None:
                raise self._aborted()
            self.over = True
            self.changed.notify_all()
        engine.forget()

    def run_locally(self, run: Callable[[], None]) -> None:
        """Run a pass that no other worker's gradients enter, by the engine's quickest way."""
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
            self.over = True

    def send_back(self, message: "RecvRecord", grads: list[Any]) -> None:
        """Send the gradients of a message to the worker it came from, without waiting."""
        if self.error is not None:
            raise self._aborted()
        fast = self.head.mode == pb.PASS_MODE_FAST
        if fast:
            zeros = zip(grads, message.like, strict=True)
            grads = [np.zeros(*like) if grad is None else grad for grad, like in zeros]
        if message.sender == self.ctx.worker:
            self._put_here(message.count, grads)
            return
        if message.sender == self._asking:
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
        self._outbox.send(message.sender, METHODS["SendGradients"], Frame(request, arrays))

    def _put_here(self, count: int, grads: Sequence[Any]) -> None:
        with self._lock:
            if count not in self._seen:
                self._seen.add(count)
                self._inbox.append((count, grads))

    def _is_last(self) -> bool:
        """Tell whether the gradient that leaves now is all that was left to do here."""
        engine = self._engine
        quiet = engine is not None and engine.left == 0 and not self._under_way.has_callbacks
        return quiet and not self.is_mine

    def take_finished(self) -> list[pb.FinishedPart]:
        """Return what is to be told on: parts of others that are over, and this one, once."""
        with self._lock:
            found, self.finished = list(self.finished.values()), {}
            if not self._told:
                self._told = True
                engaged = self.engaged if self.head.mode == pb.PASS_MODE_FAST else ()
                found.append(pb.FinishedPart(worker=self.ctx.worker, engaged=sorted(engaged)))
            return found

    def has_news(self) -> bool:
        """Tell whether this part is over and something of it, or of others, was not told on."""
        with self._lock:
            return self.over and (not self._told or bool(self.finished))

    def add_call(self, call: PendingCall, brought: tuple[str, int]) -> None:
        """Look after a call to a table's server.

        Args:
            call: It brings gradients of rows.
            brought: Address of the server, and number of the lookup.
        """
        self._outbox.add(call)
        self.brought.append(brought)

    def _collect(self) -> None:
        """Wait until what was sent has been answered.

        Raises:
            MeshError: Some worker could not be told; the first failure.
        """
        failure = self._outbox.collect(self._take)
        if self.error is not None:
            raise self._aborted()
        if failure is not None:
            raise failure

    def _take(self, answer: Frame[pb.SendGradientsResponse]) -> None:
        """Take in what came with an answer."""
        response = answer.message
        if response.returned:
            own = iter(answer.arrays)
            for returned in response.returned:
                grads = unpack_gradients(returned.gradients, own)
                self.ctx.messages.find(returned.message).entry.check(grads)
                self._put_here(returned.message, grads)
        if response.finished:
            self.hear(response.finished)

    def hear(self, finished: Iterable[pb.FinishedPart]) -> None:
        """Take note of parts that are over."""
        with self._lock:
            for part in finished:
                self.finished[part.worker] = part
            self.changed.notify_all()

    def has_work(self) -> bool:
        """Tell whether gradients wait; asked by a thread that holds `changed`."""
        return bool(self._inbox)

    def fail(self, error: BaseException) -> None:
        """Wake the worker that began the pass: another part failed."""
        with self._lock:
            if self.error is None:
                self.error = error
                self._outbox.cancel()
            self.changed.notify_all()

    def give_up(self, error: BaseException) -> list[str]:
        """End the part and take back what it added; return what it was waiting for."""
        with self._lock:
            if self.error is not None:
                return []
            self.error = error
            self._outbox.cancel()
            waiting = [
                sent.describe(self.ctx.worker)
                for count, sent in self._expected.items()
                if count not in self._seen
            ]
            self._inbox.clear()
            # A thread that works takes back what it added by itself.
            undo = self._engine if not self._busy else None
            self.changed.notify_all()
        if undo is not None:
            undo.undo()
            undo.forget()
        return waiting

    def clean_up(self) -> None:
        """Take back what a part that was given up has added, by the thread that worked for it."""
        with self._lock:
            self._busy = False
        if self._engine is not None:
            self._engine.undo()
            self._engine.forget()

    def _aborted(self) -> BackwardAborted:
        why = self.error.message if isinstance(self.error, MeshError) else str(self.error)
        return BackwardAborted(f"{self.name} was given up: {why}", worker=self.ctx.worker)

    @property
    def name(self) -> str:
        """Name the pass for people."""
        head = self.head
        return f"backward {head.number} of {head.initiator.name} in {self.ctx}"

    def stamped_head(self) -> pb.Pass:
        """Return the pass with the time that is left for it."""
        self.head.remaining_ms = max(1, int(self.deadline.remaining_s() * 1000))
        return self.head
