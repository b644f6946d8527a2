"""A process that reads blocks for a trainer: `python -m gradmesh.trainer.data.reader_process`.

The first line of input says what to read, as JSON; each further line is "epoch block". The answer
is a line of JSON and the bytes of the arrays that it announces. The process ends with its input.
"""

import json
import os
import sys
from typing import Any

import numpy as np

from gradmesh.sdk.process.memory import keep_big_buffers
from gradmesh.trainer.data.blocks import Blocks
from gradmesh.trainer.data.config import DataConfig
from gradmesh.trainer.data.source import Source, Split, data_config_from
from gradmesh.trainer.errors import DataError


def main() -> None:
    """Answer the trainer's requests until the input ends."""
    keep_big_buffers()
    # Stray prints must not get between the arrays.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    order = json.loads(sys.stdin.readline())
    try:
        blocks = _open(order)
    except DataError as error:
        _answer(answers, {"error": str(error)})
        return
    with blocks:
        for line in sys.stdin:
            epoch, block = map(int, line.split())
            try:
                _serve(answers, blocks, epoch, block)
            except DataError as error:
                _answer(answers, {"error": str(error)})
            except BrokenPipeError:
                return  # the trainer is gone


def _open(order: dict[str, Any]) -> Blocks:
    config: DataConfig = data_config_from(order["data"])
    split: Split = order["split"]
    return Source(config, order["seed"]).blocks(split, order["batch_size"])


def _serve(answers: Any, blocks: Blocks, epoch: int, block: int) -> None:
    found = blocks.read(epoch, block)
    if found is None:
        _answer(answers, {"end": True})
        return
    samples = found.samples
    arrays: list[Any] = [samples.dense, samples.ids, samples.labels]
    if samples.best is not None:
        arrays.append(samples.best)
    header = {
        "shapes": [array.shape for array in arrays],
        "bad": [list(line) for line in found.bad],
    }
    _answer(answers, header)
    for array in arrays:
        whole: Any = np.ascontiguousarray(array)
        _write(answers, memoryview(whole).cast("B") if array.size else b"")


def _answer(answers: Any, header: dict[str, Any]) -> None:
    _write(answers, json.dumps(header).encode() + b"\n")


def _write(answers: Any, content: Any) -> None:
    view = memoryview(content)
    while view:
        view = view[answers.write(view) :]


if __name__ == "__main__":
    main()
