"""Optimizers and the update rules they share with parameter servers."""

from gradmesh.engine.optim import lr_scheduler
from gradmesh.engine.optim.adagrad import Adagrad as Adagrad
from gradmesh.engine.optim.adagrad import RowwiseAdagrad as RowwiseAdagrad
from gradmesh.engine.optim.adam import Adam as Adam
from gradmesh.engine.optim.adam import Adamax as Adamax
from gradmesh.engine.optim.adam import AdamW as AdamW
from gradmesh.engine.optim.ftrl import FTRL as FTRL
from gradmesh.engine.optim.nadam import NAdam as NAdam
from gradmesh.engine.optim.optimizer import Optimizer as Optimizer
from gradmesh.engine.optim.optimizer import rule_options as rule_options
from gradmesh.engine.optim.radam import RAdam as RAdam
from gradmesh.engine.optim.registry import make_rule as make_rule
from gradmesh.engine.optim.registry import rule_names as rule_names
from gradmesh.engine.optim.rmsprop import Adadelta as Adadelta
from gradmesh.engine.optim.rmsprop import RMSprop as RMSprop
from gradmesh.engine.optim.rprop import Rprop as Rprop
from gradmesh.engine.optim.rule import Rule as Rule
from gradmesh.engine.optim.rule import Slot as Slot
from gradmesh.engine.optim.sgd import SGD as SGD

__all__ = [
    "FTRL",
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "RowwiseAdagrad",
    "Rprop",
    "Rule",
    "Slot",
    "lr_scheduler",
    "make_rule",
    "rule_names",
    "rule_options",
]
