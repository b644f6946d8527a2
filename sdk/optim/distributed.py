"""DistributedOptimizer: one optimizer over parameters of many workers."""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from gradmesh.engine.optim import Optimizer
from gradmesh.protos.autograd.v1 import autograd_pb2 as pb
from gradmesh.protos.errors import DeadlineExceeded, InvalidRequest
from gradmesh.sdk.autograd.context import Context
from gradmesh.sdk.future import Future
from gradmesh.sdk.optim.owner import CREATE, OwnerOptimizer
from gradmesh.sdk.optim.step import StepClient
from gradmesh.sdk.rpc.current import current_agent
from gradmesh.sdk.rpc.registry import REGISTRY
from gradmesh.sdk.rpc.rref.rref import RRef

_MODES = ("sync", "async", "bounded")
# If an owner does not respond, its lease drops the pending step together with the optimizer.
_ABANDON_S = 2.0
# Interval between two polls of the lead over the other clients.
_FIRST_LOOK_S = 0.001
_LONGEST_LOOK_S = 0.05


@final
class DistributedOptimizer:
    """Update parameters on the workers that own them, all workers in parallel.

    Args:
        optimizer_class: An optimizer of `gm.optim`, a class registered with @gm.rpc.register on all
            owners, or the name of either. Code is never sent.
        param_rrefs: References to parameters, or dicts with `params` and options of their own.
        args: Positional arguments of the optimizer after its parameters.
        mode: "sync": a step is prepared by all owners and takes effect when all could; one that
            fails to prepare changes nothing anywhere. "async": each owner steps at once. "bounded":
            async, and `step` returns when this client is at most `staleness` steps ahead of the
            slowest one that steps the same parameters.
        staleness: Of mode "bounded".
        timeout_s: Timeout of each round of calls; the default of rpc if None.
        kwargs: Named arguments of the optimizer.

    Attributes:
        param_groups: Options of each group, which schedulers change, and `params`, the references.

    Raises:
        InvalidRequest: The class is not registered, or a parameter is not an RRef.
        ValueError: A parameter is in more than one group, or the optimizer refused its options.
        Exception: What a constructor raised; `remote_worker` names the worker.
    """

    def __init__(
        self,
        optimizer_class: type[Optimizer] | str,
        param_rrefs: Sequence[Any],
        *args: Any,
        mode: str = "sync",
        staleness: int | None = None,
        timeout_s: float | None = None,
        **kwargs: Any,
    ) -> None:
        if mode not in _MODES:
            raise ValueError(f"no mode {mode!r}; there are {', '.join(_MODES)}")
        if (mode == "bounded") != (staleness is not None) or (staleness or 0) < 0:
            raise ValueError(
                f"staleness is {staleness!r} with mode {mode!r}; it must be 0 or more steps, "
                "and is for mode 'bounded' only"
            )
        self.mode = mode
        self.staleness = staleness
        self._name = REGISTRY.name_of(optimizer_class)
        self._timeout_s = timeout_s
        self._numbers = itertools.count(1)
        self.param_groups = _groups(param_rrefs)
        # For each owner: the groups that it has parameters of, and the indices of its parameters.
        self._shares: dict[str, dict[int, list[int]]] = {}
        every = itertools.count()
        for place, group in enumerate(self.param_groups):
            for rref in group["params"]:
                share = self._shares.setdefault(rref.owner_name(), {})
                share.setdefault(place, []).append(next(every))
        agent = current_agent()
        caller = agent.caller

        def create(worker: str) -> Future[Any]:
            return caller.call(worker, CREATE, self._creation(worker, args, kwargs), {}, timeout_s)

        made: dict[str, tuple[RRef[OwnerOptimizer], list[dict[str, Any]]]] = _finish(
            {worker: _started(create, worker) for worker in self._shares}
        )
        self._owners = {worker: rref for worker, (rref, _) in made.items()}
        self._rounds = StepClient(agent, self._owners)
        self._made = {worker: options for worker, (_, options) in made.items()}
        for worker, options in self._made.items():
            for place, own in zip(self._shares[worker], options, strict=True):
                self.param_groups[place].update(own)

    def step(self, ctx: Context) -> None:
        """Update every parameter that has a gradient in a context; others do not change.

        Args:
            ctx: The context, after its backward.

        Raises:
            ContextReleased: The context was released.
            Exception: What an optimizer raised; `remote_worker` names the worker.
        """
        if not isinstance(ctx, Context):
            raise TypeError(f"a context is needed, not a {type(ctx).__name__}")
        ctx.check()
        number = next(self._numbers)
        ask, timeout_s = self._rounds.ask, self._timeout_s
        options = {worker: self._options(worker) for worker in self._shares}
        alone = self.mode != "sync" or len(self._owners) == 1
        phase = pb.STEP_PHASE_APPLY if alone else pb.STEP_PHASE_PREPARE
        lead, errors = ask(phase, number, context=ctx.id, options=options, timeout_s=timeout_s)
        if errors:
            if not alone:
                ask(pb.STEP_PHASE_ABANDON, number, timeout_s=_ABANDON_S)
            raise _first(errors)
        if not alone:
            _, errors = ask(pb.STEP_PHASE_COMMIT, number, timeout_s=timeout_s)
            if errors:
                raise _partly(errors, [name for name in self._owners if name not in errors])
        if self.staleness is not None and lead > self.staleness:
            self._await_others(number, self.staleness)

    def _await_others(self, number: int, staleness: int) -> None:
        """Wait until this client is at most `staleness` steps ahead of the slowest.

        Raises:
            DeadlineExceeded: It is still further ahead.
        """
        deadline = current_agent().caller.deadline(self._timeout_s)
        pause_s = _FIRST_LOOK_S
        while True:
            lead, errors = self._rounds.ask(
                pb.STEP_PHASE_LOOK, number, timeout_s=max(deadline.remaining_s(), pause_s)
            )
            if errors:
                raise _first(errors)
            if lead <= staleness:
                return
            if deadline.remaining_s() < pause_s:
                raise DeadlineExceeded(
                    f"step {number} took effect, and is {lead} steps ahead of the slowest client "
                    f"of the same parameters, more than staleness={staleness}; a client that has "
                    "ended must delete its optimizer",
                    lead=lead,
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_LOOK_S)

    def state_dict(self) -> dict[str, Any]:
        """Return state and options in the format of a local optimizer of all parameters."""
        answers = self._call("state", lambda worker: ())
        state = {
            number: kept
            for worker, share in self._shares.items()
            for number, kept in zip(_numbers(share), answers[worker], strict=True)
            if kept is not None
        }
        every = itertools.count()
        groups = [
            {**group, "params": [next(every) for _ in group["params"]]}
            for group in self.param_groups
        ]
        return {"state": dict(sorted(state.items())), "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned, of this or of a local optimizer.

        Raises:
            ValueError: It does not fit the groups or the parameters; nothing is changed then.
        """
        saved = state_dict["param_groups"]
        if [len(g["params"]) for g in saved] != [len(g["params"]) for g in self.param_groups]:
            raise ValueError("the saved optimizer has other parameter groups than this one")
        places = [int(number) for group in saved for number in group["params"]]
        state = {int(number): kept for number, kept in state_dict["state"].items()}
        number = next(self._numbers)
        parts = {
            worker: [state.get(places[n]) for n in _numbers(share)]
            for worker, share in self._shares.items()
        }
        self._commit(number, "prepare_state", lambda worker: (number, parts[worker]))
        for group, old in zip(self.param_groups, saved, strict=True):
            group.update({k: v for k, v in old.items() if k != "params"})

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self._name}, on {', '.join(self._shares)})"

    def _commit(self, number: int, method: str, args: Callable[[str], tuple[Any, ...]]) -> None:
        try:
            self._call(method, args)
        except BaseException:
            told = self._start("abandon", lambda worker: (number,), _ABANDON_S)
            for future in told.values():
                future.exception()
            raise
        published = self._start("commit", lambda worker: (number,), self._timeout_s)
        errors = _errors(published)
        if errors:
            raise _partly(errors, [name for name in published if name not in errors])

    def _call(self, method: str, args: Callable[[str], tuple[Any, ...]]) -> dict[str, Any]:
        return _finish(self._start(method, args, self._timeout_s))

    def _start(
        self, method: str, args: Callable[[str], tuple[Any, ...]], timeout_s: float | None
    ) -> dict[str, Future[Any]]:
        def call(worker: str) -> Future[Any]:
            answer: Future[Any] = getattr(self._owners[worker].rpc_async(timeout_s), method)(
                *args(worker)
            )
            return answer

        return {worker: _started(call, worker) for worker in self._owners}

    def _creation(self, worker: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the arguments that make one owner's optimizer."""
        rrefs = [rref for group in self.param_groups for rref in group["params"]]
        groups = [
            {**self.param_groups[place], "params": [rrefs[number] for number in numbers]}
            for place, numbers in self._shares[worker].items()
        ]
        return [self._name, groups, list(args), dict(kwargs)]

    def _options(self, worker: str) -> list[dict[str, Any]]:
        """Return the options of each group that differ from those its owner was created with."""
        groups = [self.param_groups[place] for place in self._shares[worker]]
        return [
            {k: v for k, v in group.items() if k != "params" and (k not in own or own[k] != v)}
            for group, own in zip(groups, self._made[worker], strict=True)
        ]


def _groups(given: Sequence[Any]) -> list[dict[str, Any]]:
    """Return checked groups of references."""
    listed = list(given)
    if not listed:
        raise ValueError("the optimizer got an empty list of parameters")
    if not isinstance(listed[0], Mapping):
        listed = [{"params": listed}]
    groups = []
    seen: set[int] = set()
    for group in listed:
        if not isinstance(group, Mapping) or "params" not in group:
            raise InvalidRequest("a parameter group must be a dict with `params`")
        params = [group["params"]] if isinstance(group["params"], RRef) else list(group["params"])
        for rref in params:
            if not isinstance(rref, RRef):
                raise InvalidRequest(f"parameters must be RRefs, not {type(rref).__name__}")
            if id(rref) in seen:
                raise ValueError("a parameter appears in more than one group")
            seen.add(id(rref))
        groups.append({**group, "params": params})
    return groups


def _numbers(share: Mapping[int, Sequence[int]]) -> list[int]:
    return [number for numbers in share.values() for number in numbers]


def _started(call: Callable[[str], Future[Any]], worker: str) -> Future[Any]:
    """Return the future of a call; an error of starting it is the future's, too."""
    try:
        return call(worker)
    except Exception as error:
        failed: Future[Any] = Future()
        failed.set_exception(error)
        return failed


def _errors(futures: Mapping[str, Future[Any]]) -> dict[str, BaseException]:
    return {worker: error for worker, f in futures.items() if (error := f.exception())}


def _finish(futures: Mapping[str, Future[Any]]) -> dict[str, Any]:
    """Wait for all workers; raise the first error, with notes of the others."""
    errors = _errors(futures)
    if errors:
        raise _first(errors)
    return {worker: future.result() for worker, future in futures.items()}


def _first(errors: Mapping[str, BaseException]) -> BaseException:
    """Return the first error, with its worker's name and notes of the others."""
    worker, first = next(iter(errors.items()))
    if getattr(first, "remote_worker", None) is None:
        first.remote_worker = worker  # type: ignore[attr-defined]
    first.add_note(f"raised for the optimizer on {worker}")
    for other, error in list(errors.items())[1:]:
        first.add_note(f"also on {other}: {type(error).__name__}: {error}")
    return first


def _partly(errors: Mapping[str, BaseException], done: Sequence[str]) -> BaseException:
    """Return the error of a step that took effect on some workers only."""
    first = _first(errors)
    first.add_note(f"took effect on: {', '.join(done) or 'no worker for certain'}")
    return first
