"""Start children in order, restart those that die, and end them all in reverse order.

One thread owns all decisions; children, callers and signals only put events into its queue.
"""

import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

from gradmesh.launch.child import Child, ChildSpec
from gradmesh.launch.state import start_ticks
from gradmesh.sdk.process.process import NOT_NEEDED

_log = logging.getLogger(__name__)

_BAD_CONFIG = 2
_GAVE_UP = 4
_POLL_S = 0.05
_KILL_S = 10.0
# Time for a retired child to end before it is terminated.
_RETIRE_S = 10.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """When to restart a process that died: exponential back-off, reset after a healthy life.

    Attributes:
        first_s: Delay before the first restart; doubles with each death in a row.
        most_s: Longest delay.
        healthy_s: The death of a process that lived this long counts as the first.
        most_in_a_row: Deaths in a row after which the supervisor gives up.
    """

    first_s: float = 0.5
    most_s: float = 10.0
    healthy_s: float = 30.0
    most_in_a_row: int = 8

    def deaths(self, before: int, lived_s: float) -> int:
        """Count a death after `before` others in a row."""
        return 1 if lived_s >= self.healthy_s else before + 1

    def delay_s(self, deaths: int) -> float | None:
        """Return the delay before the next start, or None to give up."""
        if deaths > self.most_in_a_row:
            return None
        # The exponent is capped: a large number of deaths must not overflow.
        return min(self.most_s, self.first_s * 2.0 ** min(deaths - 1, 60))


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """How a supervised cluster ended.

    Attributes:
        exit_code: 0 done or stopped on request, 2 bad configuration, 4 gave up.
        reason: A sentence for the user.
        child: Name of the child that caused it, if one did.
    """

    exit_code: int
    reason: str
    child: str | None = None


@final
@dataclass(slots=True)
class _Slot:
    """One process of the cluster: its specification and the running child."""

    spec: ChildSpec
    child: Child | None = None
    due: float = 0.0
    waiting_since: float = 0.0
    deaths: int = 0
    restarts: int = 0
    done: bool = False
    ready: bool = False
    # When to terminate a retired child that has not ended; it is not restarted.
    retires_at: float | None = None


@final
@dataclass(frozen=True, slots=True)
class _Change:
    """Children to start, and names of children to retire."""

    specs: Sequence[ChildSpec]
    names: Collection[str]


# A child that ended, a change of the set of children, or a request to end (None).
_Event: TypeAlias = Child | _Change | None


@final
class Supervisor:
    """Keeps children alive until it is stopped, they are done, or it gives up on one.

    Args:
        specs: In the order of starting; children are stopped in reverse, role by role.
        log_file: Returns the log file for a child's name.
        on_line: Called with child's name and line of output, from many threads.
        on_change: Called with a description of all children after each change, from one thread.
        policy: The restart policy.
        until_done: Whether to end once every finite child is done.
        grace_s: Seconds between SIGTERM and SIGKILL.
        ready_s: Seconds a child may take to become ready.
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        log_file: Callable[[str], Path],
        *,
        on_line: Callable[[str, str], None] = lambda name, line: None,
        on_change: Callable[[list[dict[str, Any]]], None] = lambda children: None,
        policy: RestartPolicy | None = None,
        until_done: bool = False,
        grace_s: float = 12.0,
        ready_s: float = 60.0,
    ) -> None:
        self._slots = [_Slot(spec) for spec in specs]
        self._log_file = log_file
        self._on_line = on_line
        self._on_change = on_change
        self._policy = policy or RestartPolicy()
        self._until_done = until_done
        self._grace_s = grace_s
        self._ready_s = ready_s
        # SimpleQueue, because signal handlers put events into it.
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._killing = False
        self._outcome: Outcome | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    def start(self) -> None:
        """Start the supervisor thread; return at once."""
        self._thread.start()

    def request_stop(self) -> None:
        """Ask for an orderly end; returns at once. Safe in signal handlers and threads."""
        self._events.put(None)

    def change(self, specs: Sequence[ChildSpec], retired: Collection[str]) -> None:
        """Start more children, and retire others; return at once.

        Args:
            specs: Children to start after those of their role.
            retired: Names of children that end on their own; they are terminated after a timeout.
        """
        self._events.put(_Change(specs, retired))

    def kill(self) -> None:
        """End all children at once. Safe in signal handlers and threads."""
        self._killing = True
        self.request_stop()
        for slot in self._slots:
            if slot.child is not None:
                slot.child.kill()

    def wait(self, timeout_s: float | None = None) -> Outcome | None:
        """Wait until all children have ended; None when the timeout came first."""
        return self._outcome if self._ended.wait(timeout_s) else None

    @property
    def all_ready(self) -> bool:
        """Whether every child has been started and reported to be ready."""
        return all(slot.ready for slot in self._slots)

    @property
    def work_done(self) -> bool:
        """Whether there are finite children and all of them are done."""
        finite = [slot.done for slot in self._slots if slot.spec.finite]
        return bool(finite) and all(finite)

    def describe(self) -> list[dict[str, Any]]:
        """Return name, role, pid, restarts and state of each child."""
        return [_describe(slot) for slot in self._slots]

    def _run(self) -> None:
        try:
            while self._outcome is None:
                wake_s = self._advance()
                if self._outcome is None:
                    self._handle(wake_s)
        except Exception:
            _log.exception("the supervisor failed")
            self._outcome = Outcome(_GAVE_UP, "the supervisor itself failed; see its traceback")
        finally:
            self._shut_down()
            self._on_change(self.describe())
            self._ended.set()

    def _advance(self) -> float:
        """Start children that are due; return the seconds until the next action is due."""
        now = time.monotonic()
        wake_s = 3600.0
        for slot in self._slots:
            if slot.retires_at is not None:
                wake_s = min(wake_s, self._retire(slot, now))
                continue
            if slot.child is None and not slot.done:
                if slot.due <= now:
                    self._start(slot)
                else:
                    wake_s = min(wake_s, slot.due - now)
            if not self._is_ready(slot, now):
                return _POLL_S
        return wake_s

    def _start(self, slot: _Slot) -> None:
        try:
            slot.child = Child(
                slot.spec, self._log_file(slot.spec.name), self._on_line, self._events.put
            )
        except OSError as error:
            self._outcome = Outcome(
                _GAVE_UP, f"{slot.spec.name} cannot be started: {error}", slot.spec.name
            )
            return
        if self._killing:
            slot.child.kill()
        _log.info("started", extra={"child": slot.spec.name, "pid": slot.child.pid})
        self._on_change(self.describe())

    def _is_ready(self, slot: _Slot, now: float) -> bool:
        if not slot.ready:
            slot.waiting_since = slot.waiting_since or now
            slot.ready = slot.spec.ready is None or slot.spec.ready()
            if slot.ready:
                self._on_change(self.describe())
            elif now - slot.waiting_since > self._ready_s:
                reason = f"{slot.spec.name} was not ready within {self._ready_s:g} s; see its log"
                self._outcome = Outcome(_GAVE_UP, reason, slot.spec.name)
        return slot.ready

    def _handle(self, wake_s: float) -> None:
        try:
            event = self._events.get(timeout=wake_s)
        except queue.Empty:
            return
        if event is None:
            self._outcome = Outcome(0, "stopped on request")
            return
        if isinstance(event, _Change):
            self._apply(event)
        else:
            self._handle_exit(next(slot for slot in self._slots if slot.child is event), event)
        self._on_change(self.describe())

    def _apply(self, change: _Change) -> None:
        """Insert new children after those of their role, and retire others."""
        slots = list(self._slots)
        for spec in change.specs:
            last = max((i for i, s in enumerate(slots) if s.spec.role == spec.role), default=-1)
            slots.insert(last + 1, _Slot(spec))
        for slot in slots:
            if slot.spec.name in change.names and slot.retires_at is None:
                slot.retires_at = time.monotonic() + _RETIRE_S
        # Drop retired children that do not run.
        self._slots = [s for s in slots if s.retires_at is None or s.child is not None]

    def _retire(self, slot: _Slot, now: float) -> float:
        """Terminate a retired child at its deadline; return the seconds to the next check."""
        assert slot.retires_at is not None
        if now >= slot.retires_at and slot.child is not None:
            slot.child.terminate()
            slot.retires_at = now + self._grace_s
        return slot.retires_at - now

    def _handle_exit(self, slot: _Slot, child: Child) -> None:
        """Handle the end of a child: restart it, count it as done, or end the cluster."""
        slot.child = None
        name, code = slot.spec.name, child.exit_code
        is_needed = slot.spec.finite or code != NOT_NEEDED
        if slot.retires_at is not None or not is_needed:
            self._slots = [other for other in self._slots if other is not slot]
            _log.info("not needed any more", extra={"child": name})
            return
        if slot.spec.finite and code == 0:
            slot.done = True
            _log.info("done", extra={"child": name})
            if self.work_done and self._until_done:
                self._outcome = Outcome(0, "all work is done")
            elif self.work_done:
                _log.info("all work is done; the servers stay until they are stopped")
            return
        # A process that ran with this configuration earlier did not end because of it.
        if code == _BAD_CONFIG and slot.restarts == 0:
            reason = f"{name} refused its configuration (exit code 2); see its log and correct it"
            self._outcome = Outcome(_BAD_CONFIG, reason, name)
            return
        slot.deaths = self._policy.deaths(slot.deaths, child.lived_s)
        delay_s = self._policy.delay_s(slot.deaths)
        if delay_s is None:
            reason = f"{name} {child.describe_end()}, {slot.deaths} times in a row; see its log"
            self._outcome = Outcome(_GAVE_UP, reason, name)
            return
        slot.due = time.monotonic() + delay_s
        slot.restarts += 1
        _log.warning(
            f"{name} {child.describe_end()}, restarting",
            extra={"child": name, "pid": child.pid, "restarts": slot.restarts, "delay_s": delay_s},
        )

    def _shut_down(self) -> None:
        for _, group in itertools.groupby(reversed(self._slots), lambda slot: slot.spec.role):
            children = [slot.child for slot in group if slot.child is not None]
            for child in children:
                child.kill() if self._killing else child.terminate()
            deadline = time.monotonic() + self._grace_s
            for child in children:
                if not child.wait(max(0.0, deadline - time.monotonic())):
                    name = child.spec.name
                    _log.warning(f"{name} did not drain, killed", extra={"child": name})
                    child.kill()
                    child.wait(_KILL_S)
        for slot in self._slots:
            slot.child = None


def _describe(slot: _Slot) -> dict[str, Any]:
    child = slot.child
    state = "done" if slot.done else "running" if child is not None else "waiting"
    pid = child.pid if child is not None else None
    return {
        "name": slot.spec.name,
        "role": slot.spec.role,
        "state": state,
        "pid": pid,
        "start_ticks": start_ticks(pid) if pid is not None else None,
        "restarts": slot.restarts,
    }
