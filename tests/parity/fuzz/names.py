"""The public names of the engine, and those that no generator has to cover, each with a reason."""

from __future__ import annotations

from typing import Any

import gradmesh as gm
from tests.op_namespace import FUNCTIONS

_ROOTS = {"gm": (), "nn": ("nn",), "optim": ("optim",), "lr_scheduler": ("optim", "lr_scheduler")}


def has(library: Any, name: str) -> bool:
    """Return whether a library has a public name, for instance `Tensor.exp` or `nn.Linear`."""
    root, *path = name.split(".")
    if root == "Tensor":
        return hasattr(library.Tensor, path[0])
    place = FUNCTIONS if library is gm and root == "gm" else library
    for part in (*_ROOTS[root], *path):
        place = getattr(place, part, None)
        if place is None:
            return False
    return True


def public_names(library: Any) -> set[str]:
    """Return every public name of the engine: functions, methods, operators, layers, optimizers."""
    found = {f"gm.{name}" for name in (*library.__all__, *library.ops.__all__)}
    found |= {f"Tensor.{n}" for n in dir(library.Tensor) if _is_public(library.Tensor, n)}
    found |= {f"nn.{name}" for name in library.nn.__all__}
    found |= {f"nn.functional.{name}" for name in library.nn.functional.__all__}
    found |= {f"nn.init.{n}" for n in vars(library.nn.init) if n.endswith("_") and n[0] != "_"}
    found |= {f"optim.{name}" for name in library.optim.__all__}
    found |= {f"lr_scheduler.{name}" for name in library.optim.lr_scheduler.__all__}
    return found


def _is_public(cls: type, name: str) -> bool:
    if name == "__slotnames__":
        # Put there by Python where an instance was copied or pickled.
        return False
    if not name.startswith("_"):
        return True
    dunder = name.startswith("__") and name.endswith("__")
    return dunder and getattr(cls, name) is not getattr(object, name, None)


_SERVICES = "a service, tested over processes"
_RANDOM = "random numbers: their moments are tested by themselves"
_NO_PEER = "torch has no such thing; tested against formulas"
_CODE = "takes a function or belongs to Python"
_PARTS = "holds other layers, which are covered"
# Public names without a generator, each with the reason.
EXEMPT: dict[str, str] = {
    **{
        f"gm.{name}": _SERVICES
        for name in (
            "Admission",
            "BadGradients",
            "DDP",
            "DataShards",
            "Eviction",
            "Future",
            "Initializer",
            "Limits",
            "LocalCluster",
            "Mesh",
            "RRef",
            "RetryPolicy",
            "SecurityConfig",
            "SyncBatchNorm",
            "Table",
            "TableReader",
            "Timeouts",
            "autograd",
            "connect",
            "ddp",
            "errors",
            "futures",
            "process_group",
            "remote",
            "rpc",
            "rpc_async",
            "rpc_sync",
            "step",
            "train",
        )
    },
    **{
        f"gm.{name}": "every graph uses it"
        for name in (
            "Tensor",
            "bfloat16",
            "float16",
            "float32",
            "float64",
            "from_numpy",
            "int64",
            "manual_seed",
            "nn",
            "no_grad",
            "ops",
            "optim",
        )
    },
    **{
        f"Tensor.{name}": _CODE
        for name in (
            "__annotations__",
            "__array__",
            "__doc__",
            "__init__",
            "__init_subclass__",
            "__module__",
            "__repr__",
            "__slots__",
            "__subclasshook__",
            "__weakref__",
            "register_hook",
            "register_post_accumulate_grad_hook",
            "__index__",
            "__iter__",
        )
    },
    "Tensor.backward": "every graph ends with it",
    "Tensor.retain_grad": "tested by itself: it changes what a graph keeps",
    "Tensor.cuda": "needs a GPU",
    **{
        f"Tensor.{name}": "bookkeeping of the engine"
        for name in ("extras", "grad_buffer", "is_node", "is_view", "seen", "version")
    },
    **{
        f"nn.{name}": _PARTS
        for name in (
            "CrossNetwork",
            "Module",
            "ModuleDict",
            "ModuleList",
        )
    },
    **{
        f"nn.{name}": _SERVICES
        for name in ("RemoteEmbedding", "RemoteEmbeddingBag", "RemoteModule")
    },
    "nn.LoadReport": "what load_state_dict returns",
    "nn.Parameter": "every layer uses it",
    "nn.clip_grad_norm_": "changes gradients, not a graph; tested against torch by itself",
    "nn.clip_grad_value_": "changes gradients, not a graph; tested against torch by itself",
    "nn.functional": "a namespace",
    **{
        f"nn.init.{name}": _RANDOM
        for name in (
            "kaiming_normal_",
            "kaiming_uniform_",
            "normal_",
            "orthogonal_",
            "trunc_normal_",
            "uniform_",
            "xavier_normal_",
            "xavier_uniform_",
        )
    },
    "optim.DistributedOptimizer": _SERVICES,
    "optim.FTRL": _NO_PEER,
    "optim.RowwiseAdagrad": _NO_PEER,
    **{
        f"optim.{name}": "what optimizers are made of"
        for name in ("Optimizer", "Rule", "Slot", "make_rule", "rule_names", "rule_options")
    },
    "optim.lr_scheduler": "a namespace",
    "lr_scheduler.SequentialLR": "holds other schedules; tested against torch by itself",
    "lr_scheduler.LRScheduler": "what schedules are made of",
}
