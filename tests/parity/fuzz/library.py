"""The two libraries behind one interface: make a leaf, read a result, fill a layer."""

from __future__ import annotations

import contextlib
from typing import Any

import ml_dtypes
import numpy as np
import torch

import gradmesh as gm
from tests.op_namespace import FUNCTIONS
from tests.parity.fuzz.graph import Leaf, lay_out

FLOATS = ("float16", "bfloat16", "float32", "float64")
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


def numpy_dtype(name: str) -> Any:
    """Return numpy's dtype of a name; bfloat16 is not one of its own."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


class Ours:
    """gradmesh."""

    t: Any = FUNCTIONS
    f: Any = gm.nn.functional
    n: Any = gm.nn
    tensor_class = gm.Tensor

    def leaf(self, leaf: Leaf) -> Any:
        """Return a tensor on memory that lies as the leaf says."""
        made = gm.from_numpy(lay_out(leaf.values, leaf.layout))
        return made.requires_grad_() if leaf.requires_grad else made

    def dtype(self, name: str) -> Any:
        """Return the dtype of a name."""
        return numpy_dtype(name)

    def dtype_name(self, tensor: Any) -> str:
        """Return the name of a tensor's dtype."""
        return str(tensor.dtype)

    def array(self, tensor: Any) -> Any:
        """Return the values as a plain numpy array; halves as float64."""
        if tensor.is_sparse:
            return np.asarray(tensor.to_dense()).astype(np.float64)
        data = tensor.data
        return data.astype(np.float64) if data.dtype.name in FLOATS else data

    def constant(self, array: Any) -> Any:
        """Return a tensor of an array's values."""
        return gm.from_numpy(array)

    def fill(self, module: Any, arrays: Any) -> None:
        """Put the values that a function of place, name and shape gives into a layer's state."""
        for place, (name, tensor) in enumerate(module.state_dict().items()):
            array = arrays(place, name, tuple(tensor.shape))
            if array is not None:
                tensor.data[...] = array

    def cast(self, module: Any, name: str) -> Any:
        """Return the layer in a dtype."""
        return module.to(dtype=numpy_dtype(name)) if name != "float32" else module

    def grad_mode(self, off: bool) -> Any:
        """Return a context that records nothing, or one that changes nothing."""
        return gm.no_grad() if off else contextlib.nullcontext()


class Torch:
    """PyTorch, the reference."""

    t: Any = torch
    f: Any = torch.nn.functional
    n: Any = torch.nn
    tensor_class = torch.Tensor

    def leaf(self, leaf: Leaf) -> Any:
        """Return a tensor on memory that lies as the leaf says; torch has no negative strides."""
        made = self.constant(lay_out(leaf.values, leaf.layout))
        return made.requires_grad_() if leaf.requires_grad else made

    def dtype(self, name: str) -> Any:
        """Return the dtype of a name."""
        return getattr(torch, name)

    def dtype_name(self, tensor: Any) -> str:
        """Return the name of a tensor's dtype."""
        return _NAMES[tensor.dtype]

    def array(self, tensor: Any) -> Any:
        """Return the values as a plain numpy array; halves as float64."""
        with torch.no_grad():
            dense = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
            return (dense.double() if dense.is_floating_point() else dense).numpy()

    def constant(self, array: Any) -> Any:
        """Return a tensor of an array's values, on the same memory where torch can."""
        if any(s < 0 for s in array.strides):
            array = array.copy()
        if array.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    def fill(self, module: Any, arrays: Any) -> None:
        """Put the values that a function of place, name and shape gives into a layer's state."""
        with torch.no_grad():
            for place, (name, tensor) in enumerate(module.state_dict().items()):
                array = arrays(place, name, tuple(tensor.shape))
                if array is not None:
                    tensor.copy_(torch.from_numpy(array))

    def cast(self, module: Any, name: str) -> Any:
        """Return the layer in a dtype."""
        return module.to(dtype=getattr(torch, name))

    def grad_mode(self, off: bool) -> Any:
        """Return a context that records nothing, or one that changes nothing."""
        return torch.no_grad() if off else contextlib.nullcontext()


_NAMES = {
    getattr(torch, name): name
    for name in (*FLOATS, "uint8", "int8", "int16", "int32", "int64", "bool")
}

OURS, TORCH = Ours(), Torch()
