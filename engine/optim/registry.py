"""The registry of update rules by name, as recipes on the wire and checkpoints name them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from gradmesh.engine.optim.adagrad import AdagradRule, RowwiseAdagradRule
from gradmesh.engine.optim.adam import AdamaxRule, AdamRule
from gradmesh.engine.optim.ftrl import FTRLRule
from gradmesh.engine.optim.nadam import NAdamRule
from gradmesh.engine.optim.radam import RAdamRule
from gradmesh.engine.optim.rmsprop import AdadeltaRule, RMSpropRule
from gradmesh.engine.optim.rprop import RpropRule
from gradmesh.engine.optim.rule import Rule
from gradmesh.engine.optim.sgd import SGDRule

_RULES: Mapping[str, type[Rule]] = {
    rule.name: rule
    for rule in (
        AdadeltaRule,
        AdagradRule,
        AdamRule,
        AdamaxRule,
        FTRLRule,
        NAdamRule,
        RAdamRule,
        RMSpropRule,
        RowwiseAdagradRule,
        RpropRule,
        SGDRule,
    )
}


def rule_names() -> tuple[str, ...]:
    """Return the names of all update rules, sorted."""
    return tuple(sorted(_RULES))


def make_rule(name: str, options: Mapping[str, Any]) -> Rule:
    """Return the update rule of a name with options; lists, as from JSON, become tuples.

    Raises:
        ValueError: If there is no such rule or it has no such option.
    """
    if name not in _RULES:
        raise ValueError(f"no rule {name!r}; there are {', '.join(rule_names())}")
    kind = _RULES[name]
    unknown = set(options) - {field.name for field in dataclasses.fields(kind)}
    if unknown:
        raise ValueError(f"rule {name!r} has no options {sorted(unknown)}")
    plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    return kind(**plain)
