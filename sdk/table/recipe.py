"""Initializers and optimizers of tables as messages.

A client names them, a parameter server builds them; both use this module.
"""

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

from gradmesh.engine.kernels import init_normal, init_uniform
from gradmesh.engine.optim import Optimizer, Rule, make_rule
from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.frame import Array
from gradmesh.protos.sharding import Ids

_Fill: TypeAlias = Callable[[Array, Ids, int, dict[str, float]], None]

_FILLS: dict[str, tuple[set[str], _Fill]] = {
    "uniform": (
        {"low", "high"},
        lambda out, ids, seed, s: init_uniform(out, ids, seed, s["low"], s["high"]),
    ),
    "normal": (
        {"mean", "std"},
        lambda out, ids, seed, s: init_normal(out, ids, seed, s["mean"], s["std"]),
    ),
    "constant": ({"value"}, lambda out, ids, seed, s: out.fill(s["value"])),
}


@final
@dataclass(frozen=True, slots=True)
class Initializer:
    """The distribution of a table's initial rows; a row depends on its seed and id alone.

    Args:
        name: "uniform", "normal" or "constant".
        settings: Its numbers.

    Raises:
        InvalidRequest: The initializer is unknown, or its numbers are wrong.
    """

    name: str
    settings: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in _FILLS:
            raise InvalidRequest(f"no initializer {self.name!r}; there are {', '.join(_FILLS)}")
        wanted = _FILLS[self.name][0]
        if set(self.settings) != wanted or not all(map(math.isfinite, self.settings.values())):
            raise InvalidRequest(
                f"initializer {self.name!r} takes the numbers {', '.join(sorted(wanted))}, "
                f"not {self.settings}"
            )

    @classmethod
    def uniform(cls, bound: float) -> "Initializer":
        """Return numbers between -bound and bound."""
        return cls("uniform", {"low": -bound, "high": bound})

    @classmethod
    def normal(cls, std: float) -> "Initializer":
        """Return numbers around 0 with a standard deviation."""
        return cls("normal", {"mean": 0.0, "std": std})

    @classmethod
    def constant(cls, value: float) -> "Initializer":
        """Return one number everywhere."""
        return cls("constant", {"value": value})

    def fill(self, out: Array, ids: Ids, seed: int) -> None:
        """Write the initial rows of `ids` into `out`, [n, dim] of float32 or float64."""
        _FILLS[self.name][1](out, ids, seed, self.settings)


def table_seed(spec: table_pb2.TableSpec) -> int:
    """Return the seed of a table's initial rows."""
    # Tables with the same seed and other names must not have the same rows.
    return spec.seed ^ zlib.crc32(spec.name.encode()) << 32


def to_recipe(source: Initializer | Optimizer) -> table_pb2.Recipe:
    """Return the recipe of an initializer or of an optimizer without parameters.

    Raises:
        InvalidRequest: The optimizer has parameters of its own.
    """
    if isinstance(source, Initializer):
        return table_pb2.Recipe(name=source.name, settings=source.settings)
    if not source.is_recipe:
        raise InvalidRequest(
            f"a table needs an optimizer without parameters, e.g. {type(source).__name__}(lr=0.05)"
        )
    settings: dict[str, float] = {}
    for name, value in source.defaults.items():
        if name == "maximize" and not value:
            # Older tables and servers do not have the option.
            continue
        if isinstance(value, tuple):
            settings |= {f"{name}.{i}": float(part) for i, part in enumerate(value)}
        else:
            settings[name] = float(value)
    return table_pb2.Recipe(name=source.rule.name, settings=settings)


def initializer_of(recipe: table_pb2.Recipe) -> Initializer:
    """Return the initializer that a recipe names.

    Raises:
        InvalidRequest: It is unknown.
    """
    return Initializer(recipe.name, dict(recipe.settings))


def rule_of(recipe: table_pb2.Recipe) -> tuple[Rule, float]:
    """Return the update rule that a recipe names, and its learning rate.

    Raises:
        InvalidRequest: It is unknown, or its numbers are wrong.
    """
    settings: dict[str, Any] = dict(recipe.settings)
    lr = settings.pop("lr", math.nan)
    if not (math.isfinite(lr) and lr >= 0):
        raise InvalidRequest(f"optimizer {recipe.name!r} has no learning rate; set lr")
    if not all(map(math.isfinite, settings.values())):
        raise InvalidRequest(f"optimizer {recipe.name!r}: {settings} are not all finite numbers")
    try:
        plain = make_rule(recipe.name, {})
        return make_rule(recipe.name, _options(plain, settings)), lr
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"optimizer {recipe.name!r}: {error}") from None


def _options(plain: Rule, settings: dict[str, float]) -> dict[str, Any]:
    """Return a rule's options: bools are sent as numbers, pairs as name.0 and name.1."""
    options: dict[str, Any] = {}
    pairs = {name.partition(".")[0] for name in settings if "." in name}
    for name, value in settings.items():
        if "." not in name:
            options[name] = bool(value) if isinstance(getattr(plain, name, None), bool) else value
    for name in pairs:
        keys = sorted(held for held in settings if held.partition(".")[0] == name)
        if keys != [f"{name}.{i}" for i in range(len(getattr(plain, name, ())))]:
            raise ValueError(f"it has no option {name!r} of {len(keys)} numbers")
        options[name] = tuple(settings[held] for held in keys)
    return options
