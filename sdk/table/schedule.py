"""Learning-rate schedules of tables, as data that can travel; the engine's closed forms."""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from gradmesh.engine.optim import SGD, lr_scheduler
from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.errors import InvalidRequest

Rate: TypeAlias = Callable[[float, int], float]
"""Returns the learning rate from its base and the number of steps before this one."""

# Arguments of each class and the attributes that hold them.
_KINDS: dict[str, tuple[type[lr_scheduler.LRScheduler], dict[str, str]]] = {
    "constant": (
        lr_scheduler.ConstantLR,
        {"factor": "factor", "total_iters": "total_iters"},
    ),
    "linear": (
        lr_scheduler.LinearLR,
        {"start_factor": "start_factor", "end_factor": "end_factor", "total_iters": "total_iters"},
    ),
    "cosine": (lr_scheduler.CosineAnnealingLR, {"T_max": "t_max", "eta_min": "eta_min"}),
    "step": (lr_scheduler.StepLR, {"step_size": "step_size", "gamma": "gamma"}),
    "exponential": (lr_scheduler.ExponentialLR, {"gamma": "gamma"}),
}
_WHOLE = ("total_iters", "T_max", "step_size")


def schedule_recipe(schedule: lr_scheduler.LRScheduler | None) -> table_pb2.Recipe | None:
    """Return what travels of a schedule; its optimizer may be a recipe.

    Raises:
        InvalidRequest: Tables have no such schedule.
    """
    if schedule is None:
        return None
    for name, (kind, fields) in _KINDS.items():
        if type(schedule) is kind:
            settings = {given: float(getattr(schedule, held)) for given, held in fields.items()}
            return table_pb2.Recipe(name=name, settings=settings)
    raise InvalidRequest(
        f"tables have no schedule {type(schedule).__name__}; there are "
        f"{', '.join(kind.__name__ for kind, _ in _KINDS.values())}"
    )


def schedule_of(recipe: table_pb2.Recipe) -> Rate:
    """Return the schedule that a recipe names.

    Raises:
        InvalidRequest: There is none, or its numbers are wrong.
    """
    if not recipe.name:
        return lambda base, step: base
    if recipe.name not in _KINDS:
        raise InvalidRequest(f"no schedule {recipe.name!r}; there are {', '.join(_KINDS)}")
    kind, fields = _KINDS[recipe.name]
    settings: dict[str, Any] = dict(recipe.settings)
    if set(settings) != set(fields) or not all(map(math.isfinite, settings.values())):
        raise InvalidRequest(
            f"schedule {recipe.name!r} takes the numbers {', '.join(fields)}, not {settings}"
        )
    for name in _WHOLE:
        if name in settings and not (settings[name] >= 1 and settings[name] % 1 == 0):
            raise InvalidRequest(f"schedule {recipe.name!r}: {name} must be a whole number from 1")
        if name in settings:
            settings[name] = int(settings[name])
    made = kind(SGD(), **settings)
    return lambda base, step: made.rate(base, step, 0)


def counts_steps(spec: table_pb2.TableSpec) -> bool:
    """Tell whether the number of a step changes what it does to rows."""
    settings = spec.optimizer.settings
    return bool(
        spec.schedule.name
        or spec.eviction.name == "ttl"
        or spec.optimizer.name in ("adam", "adamax")
        or settings.get("dampening", 0.0)
        or settings.get("lr_decay", 0.0)
    )
