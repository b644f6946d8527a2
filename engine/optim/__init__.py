"""Optimizers and the update rules they share with parameter servers."""

from gradmesh.engine.optim.adagrad import Adagrad as Adagrad
from gradmesh.engine.optim.adagrad import AdagradRule as AdagradRule
from gradmesh.engine.optim.adagrad import RowwiseAdagrad as RowwiseAdagrad
from gradmesh.engine.optim.adagrad import RowwiseAdagradRule as RowwiseAdagradRule
from gradmesh.engine.optim.catalogue import make_rule as make_rule
from gradmesh.engine.optim.catalogue import rule_names as rule_names
from gradmesh.engine.optim.optimizer import Optimizer as Optimizer
from gradmesh.engine.optim.optimizer import rule_options as rule_options
from gradmesh.engine.optim.rule import Rule as Rule
from gradmesh.engine.optim.rule import Slot as Slot
from gradmesh.engine.optim.sgd import SGD as SGD
from gradmesh.engine.optim.sgd import SGDRule as SGDRule

__all__ = [
    "SGD",
    "Adagrad",
    "AdagradRule",
    "Optimizer",
    "RowwiseAdagrad",
    "RowwiseAdagradRule",
    "Rule",
    "SGDRule",
    "Slot",
    "make_rule",
    "rule_names",
    "rule_options",
]
