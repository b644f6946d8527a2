"""CPU versions of GPU-only features of torch's wrapper, for the fuzzer to compare with."""

from __future__ import annotations

from typing import Any


def short_module(module: Any, name: str | None) -> Any:
    """Return a module of torch that runs another one on short copies of its parameters.

    That is what mixed precision means; torch's own needs a GPU: tried on the CPU, with streams that
    do nothing, it gave infinities in the first step. Sums are full here.
    """
    import torch

    wanted = getattr(torch, name or "float32")

    class Short(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.full = module

        def forward(self, x: Any, active: Any) -> Any:
            short = {n: p.to(wanted) for n, p in self.full.named_parameters()}
            x = x.to(wanted) if x.is_floating_point() else x
            return torch.func.functional_call(self.full, short, (x, active))

    return Short()


class _Stream:
    """A stream whose work is always done."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def wait_stream(self, _: object) -> None:
        pass


def stand_in_for_streams() -> None:
    """Let torch have streams in this process, for optimizers in backward."""
    import torch

    torch.Stream = _Stream  # type: ignore[assignment, misc]
    torch.accelerator.current_stream = lambda *_: _Stream()  # type: ignore[assignment, return-value]
