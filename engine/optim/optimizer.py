"""Optimizer: apply an update rule to each parameter.

Without parameters it is a recipe, which a table sends to its parameter servers.
"""

from __future__ import annotations

import dataclasses
from abc import ABC
from collections.abc import Mapping
from typing import Any, ClassVar

from gradmesh.engine.autograd import RowGrad, Tensor
from gradmesh.engine.backend import array_module
from gradmesh.engine.optim.rule import BoundRule, Rule

# A schedule that changes options makes a new rule each step, so the cache is bounded.
_MAX_RULES = 256


class Optimizer(ABC):
    """Base class of optimizers: updates parameters from their gradients.

    Args:
        params: Parameters, or dicts with `params` and own options; a number or None makes a recipe.
        lr: Learning rate.
        options: The rule's options, the same for all groups unless a group says otherwise.
    """

    rule_class: ClassVar[type[Rule]]

    def __init__(self, params: Any, lr: float, **options: Any) -> None:
        if isinstance(params, (int, float)):
            params, lr = None, float(params)
        if lr < 0:
            raise ValueError(f"the learning rate is {lr}; it cannot be negative")
        options = _as_fixed({"maximize": False, **options})
        self.rule_class(**options)  # raises if an option is wrong
        self.defaults: dict[str, Any] = {"lr": lr, **options}
        self.param_groups: list[dict[str, Any]] = []
        self.state: dict[Tensor, dict[str, Any]] = {}
        self._rules: dict[tuple[Any, ...], Rule] = {}
        self._bounds: dict[Tensor, BoundRule] = {}
        self._fields = [field.name for field in dataclasses.fields(self.rule_class)]
        if params is not None:
            self._add_all(params)

    @property
    def is_recipe(self) -> bool:
        """Return whether the optimizer was made without parameters."""
        return not self.param_groups

    @property
    def lr(self) -> float:
        """Return the learning rate of the first group, or the recipe's."""
        source = self.param_groups[0] if self.param_groups else self.defaults
        return float(source["lr"])

    @property
    def rule(self) -> Rule:
        """Return the update rule with the default options, as tables bind it."""
        return self._rule_of(self.defaults)

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Add parameters with options of their own.

        Raises:
            ValueError: If a parameter is in a group already or an option is unknown.
        """
        params = group["params"]
        made = {"params": [params] if isinstance(params, Tensor) else list(params)}
        unknown = set(group) - {"params"} - set(self.defaults) - {"initial_lr"}
        if unknown:
            raise ValueError(f"{type(self).__name__} has no options {sorted(unknown)}")
        known = {id(p) for g in self.param_groups for p in g["params"]}
        for param in made["params"]:
            if not isinstance(param, Tensor) or not param.is_leaf:
                raise TypeError(f"optimizers update leaf tensors, not {type(param).__name__}")
            if id(param) in known:
                raise ValueError("a parameter appears in more than one group")
            known.add(id(param))
        self.param_groups.append({**self.defaults, **_as_fixed(group), **made})

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients, or set them to 0 in place."""
        for group in self.param_groups:
            for param in group["params"]:
                if set_to_none or param.grad is None or param.grad.is_sparse:
                    param.grad = None
                else:
                    param.grad.data[...] = 0

    def step(self, grads: Mapping[Any, Any] | None = None) -> None:
        """Update every parameter that has a gradient.

        Args:
            grads: Gradients by parameter (tensor, array or RowGrad), instead of `.grad`.
        """
        bounds = self._bounds
        for group in self.param_groups:
            rule, lr = self._rule_of(group), group["lr"]
            for param in group["params"]:
                grad = param.grad if grads is None else grads.get(param)
                if grad is None:
                    continue
                bound = bounds.get(param)
                if (
                    bound is not None
                    and bound.weight is param.data
                    and bound.rule is rule
                    and not isinstance(grad, RowGrad)
                ):
                    bound.step(grad.data if isinstance(grad, Tensor) else grad, lr)
                    param.version[0] += 1
                else:
                    self._update(rule, lr, param, grad)

    def state_dict(self) -> dict[str, Any]:
        """Return state and options with parameters by number; arrays are not copied."""
        numbers: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            positions = [numbers.setdefault(id(p), len(numbers)) for p in group["params"]]
            groups.append({**group, "params": positions})
        state = {numbers[id(p)]: dict(kept) for p, kept in self.state.items()}
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load state and options that `state_dict` returned.

        Raises:
            ValueError: If the groups do not match; nothing is changed then.
        """
        saved = state_dict["param_groups"]
        if [len(g["params"]) for g in saved] != [len(g["params"]) for g in self.param_groups]:
            raise ValueError("the saved optimizer has other parameter groups than this one")
        params = [p for g in self.param_groups for p in g["params"]]
        positions = [n for g in saved for n in g["params"]]
        self._bounds.clear()
        by_number = dict(zip(positions, params, strict=True))
        self.state = {
            by_number[int(n)]: {
                "step": kept["step"],
                "slots": {name: array.copy() for name, array in kept["slots"].items()},
            }
            for n, kept in state_dict["state"].items()
        }
        for group, old in zip(self.param_groups, saved, strict=True):
            group.update(_as_fixed({k: v for k, v in old.items() if k != "params"}))

    def __repr__(self) -> str:
        options = ", ".join(f"{k}={v!r}" for k, v in self.defaults.items())
        return f"{type(self).__name__}({options})"

    def _add_all(self, params: Any) -> None:
        given: list[Any] = [params] if isinstance(params, Tensor) else list(params)
        if not given:
            raise ValueError("the optimizer got an empty list of parameters")
        if not isinstance(given[0], dict):
            given = [{"params": given}]
        for group in given:
            self.add_param_group(group)

    def _rule_of(self, options: Mapping[str, Any]) -> Rule:
        key = tuple([options[field] for field in self._fields])
        try:
            rule = self._rules.get(key)
        except TypeError:
            # A list in a group is not hashable.
            return self._rule_of(_as_fixed(options))
        if rule is None:
            if len(self._rules) == _MAX_RULES:
                self._rules.clear()
            named = dict(zip(self._fields, key, strict=True))
            rule = self._rules[key] = self.rule_class(**named)
        return rule

    def _update(self, rule: Rule, lr: float, param: Tensor, grad: Any) -> None:
        kept = self.state.get(param)
        if kept is None:
            kept = self.state[param] = {"step": 0, "slots": self._slots(rule, param, grad)}
        elif len(kept["slots"]) < len(rule.slots(1)):
            # An option that was off, such as momentum, is on since the last step.
            kept["slots"] = {**self._slots(rule, param, grad), **kept["slots"]}
            if rule.counts_from_state:
                kept["step"] = 0
        if isinstance(grad, RowGrad):
            kept["step"] += 1
            merged = grad.coalesce()
            rule.update_rows(param.data, kept["slots"], merged.ids, merged.rows, lr, kept["step"])
        else:
            bound = self._bounds[param] = BoundRule(rule, param.data, kept)
            bound.step(grad.data if isinstance(grad, Tensor) else grad, lr)
        param.version[0] += 1

    @staticmethod
    def _slots(rule: Rule, param: Tensor, grad: Any) -> dict[str, Any]:
        if isinstance(grad, RowGrad):
            rows, dim = param.shape
            return rule.allocate(rows, dim, param.dtype, array_module(param.data))
        return rule.dense_slots(param.data)


def rule_options(rule: Rule) -> dict[str, Any]:
    """Return a rule's options as plain values, for recipes on the wire and checkpoints."""
    return dataclasses.asdict(rule)


def _as_fixed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with tuples for lists: rules are kept by their options."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
