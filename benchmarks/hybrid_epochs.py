"""The hybrid benchmark of torch's examples: epochs of ten batches, percentiles a trainer.

The table has the columns of the original. Its last column was called epochs a second there, though
it was the samples of the last epoch; here it is samples a second, and true.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gradmesh.benchmarks.hybrid import SAMPLES, TOTAL, HybridSide, our_side, peer_side
from gradmesh.benchmarks.hybrid_shape import EPOCH, Shape

_PERCENTILES: Final = (50, 75, 90, 95)


def run(
    shape: Shape, epochs: int, warmup: int, *, against_torch: bool, lane: str
) -> dict[str, NDArray[np.float64]]:
    """Measure epochs.

    Args:
        shape: What to train.
        epochs: How many count.
        warmup: How many go before.
        against_torch: Whether the peer is measured, too.
        lane: Of our hot calls.

    Returns:
        Seconds and samples of each epoch by side, [trainers, epochs, 2].
    """
    with ExitStack() as stack:
        sides: dict[str, HybridSide] = {"gradmesh": stack.enter_context(our_side(shape, lane))}
        if against_torch:
            sides["torch"] = stack.enter_context(peer_side(shape))
        found = {}
        for name, side in sides.items():
            if warmup:
                side.run(warmup * EPOCH)
            steps = side.run(epochs * EPOCH).reshape(shape.trainers, epochs, EPOCH, -1)
            found[name] = steps.sum(axis=2)[:, :, [TOTAL, SAMPLES]]
        return found


def table(found: Mapping[str, NDArray[np.float64]], shape: Shape) -> str:
    """Return percentiles of each trainer and of all, and the ratio of the sides."""
    lines = [f"{shape.trainers} trainers, {shape.servers} parameter servers, {shape.tables} tables"]
    middles = {}
    for name, epochs in found.items():
        head = "".join(f"{'sec/epoch':>14}{'samples/sec':>12}" for _ in _PERCENTILES)
        lines += ["", name, f"{'':10}{head}"]
        for rank, own in enumerate(epochs):
            lines.append(_line(f"Trainer{rank}", own[:, 0], own[:, 1].mean()))
        # All trainers work at once: an epoch of all is as many samples in the same time.
        together = epochs[:, :, 1].mean(axis=1).sum()
        lines.append(_line("All", epochs[:, :, 0].reshape(-1), together))
        middles[name] = float(np.median(epochs[:, :, 0]))
    if len(middles) > 1:
        lines += ["", f"ratio of the medians: {middles['torch'] / middles['gradmesh']:.2f}"]
    return "\n".join(lines)


def _line(label: str, seconds: NDArray[np.float64], samples: float) -> str:
    cells = []
    for percentile in _PERCENTILES:
        value = float(np.percentile(seconds, percentile))
        tag = f"p{percentile}:"
        cells.append(f"{tag:>6}{value:>8.3f}{samples / value:>10,.0f}/s")
    return f"{label:>8}: {''.join(cells)}"


def as_json(found: Mapping[str, NDArray[np.float64]], shape: Shape) -> dict[str, Any]:
    """Return the seconds and samples of every epoch as JSON holds them."""
    plain = {
        name: {"seconds": epochs[:, :, 0].tolist(), "samples": epochs[:, :, 1].tolist()}
        for name, epochs in found.items()
    }
    return {"shape": shape.as_dict(), "epochs": plain}
