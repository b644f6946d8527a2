import numpy as np
import pytest

from gradmesh.engine import kernels
from gradmesh.engine.kernels import (
    bag,
    fused,
    hashing,
    initializer,
    norm,
    route,
    rows,
    sketch,
    update,
)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_kernel_is_compiled_ahead(dtype: type) -> None:
    kernels.warm_up(dtype)

    modules = (bag, fused, hashing, initializer, norm, route, rows, sketch, update)
    compiled = {
        f"{module.__name__}.{name}": value.signatures
        for module in modules
        for name, value in vars(module).items()
        if hasattr(value, "signatures") and value.targetoptions.get("inline") != "always"
    }
    assert len(compiled) > 20
    assert [name for name, signatures in compiled.items() if not signatures] == []
