"""Score samples with a trained model, on a cluster of this machine."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from gradmesh.base_error import GradmeshError
from gradmesh.engine.nn import Module
from gradmesh.launch.local import LocalCluster
from gradmesh.sdk.mesh.connect import connect
from gradmesh.trainer.data import Blocks, Source
from gradmesh.trainer.data.samples import BadLines
from gradmesh.trainer.errors import DataError
from gradmesh.trainer.job.evaluation import evaluate, scores
from gradmesh.trainer.job.model import make_model
from gradmesh.trainer.job.saved_model import SavedModel, load_model
from gradmesh.trainer.models import remote_embedding
from gradmesh.trainer.models.config import MODEL_NAMES
from gradmesh.trainer.process_group import LocalProcessGroup


@final
class Scorer:
    """A trained model on a running cluster; made by `open_scorer`.

    Args:
        saved: The saved model.
        model: Takes (dense, ids), returns log-odds.
    """

    def __init__(self, saved: SavedModel, model: Any) -> None:
        self.saved = saved
        self._model = model

    def evaluate(self, files: Sequence[Path], batches: int) -> dict[str, float]:
        """Measure on the job's test data, or on other files of the same format.

        Args:
            files: Other files; the job's own if empty.
            batches: Number of batches; 0 for all.

        Raises:
            DataError: The data cannot be used.
        """
        job, data = self.saved.spec.job, self.saved.spec.data
        bad_lines = BadLines(data.max_bad_lines)
        with self._blocks(files, labelled=True) as blocks:
            figures = evaluate(
                self._model,
                blocks,
                LocalProcessGroup(),
                batches,
                job.batch_size,
                streaming=job.eval_auc == "streaming",
                bad_lines=bad_lines,
            )
        if data.format != "generated":
            figures["bad_lines"] = float(bad_lines.count)
        return figures

    def predict(self, files: Sequence[Path], *, labelled: bool) -> Iterator[NDArray[np.float32]]:
        """Yield the probability of each sample, in the order of the files, batch by batch.

        Args:
            files: Files of the job's format.
            labelled: Whether they hold labels, which are ignored.

        Raises:
            DataError: The data cannot be used, or a line is not a sample.
        """
        with self._blocks(files, labelled=labelled) as blocks:
            number = 0
            while (block := blocks.read(0, number)) is not None:
                if block.bad:
                    # The output has one line per line of the file: skipping one shifts the rest.
                    raise DataError(f"{block.bad[0]}; correct the file, every line needs a result")
                number += 1
                size = self.saved.spec.job.batch_size
                for scored in scores(self._model, _cut(block.samples, size)):
                    yield scored[1]

    def _blocks(self, files: Sequence[Path], labelled: bool) -> Blocks:
        spec = self.saved.spec
        data = spec.data
        if files:
            # The training files may no longer exist.
            data = replace(data, train=tuple(files), validation=(), test=())
        source = Source(data, spec.job.seed)
        if source.fields != self.saved.fields:
            raise DataError(
                f"these data have {source.fields}, the model was trained on {self.saved.fields}"
            )
        if files:
            return source.with_files(files, labelled=labelled)
        return source.blocks("test", spec.job.batch_size)


def _cut(samples: Any, size: int) -> Iterator[Any]:
    for begin in range(0, samples.size, size):
        yield samples.part(begin, begin + size)


@contextlib.contextmanager
def open_scorer(
    path: Path, parameter_servers: int = 1, *, trust_code: bool = False
) -> Iterator[Scorer]:
    """Start a cluster with the tables of a trained model for the duration of the block.

    Args:
        path: Output folder of `gradmesh train`, or the model in it.
        parameter_servers: Number of servers; the tables are resharded to them.
        trust_code: Whether to import the module that the folder names as its model.

    Raises:
        DataError: There is no model, or its files are not of one model.
        CodeNotTrusted: The folder names code to import, and `trust_code` is False.
    """
    saved = load_model(path)
    saved.check_code(trust_code)
    with (
        LocalCluster(parameter_servers=parameter_servers) as cluster,
        connect(cluster.address) as mesh,
    ):
        mesh.restore(saved.tables)
        names = [f"feature-{feature}" for feature in range(saved.fields.features)]
        embeddings = remote_embedding([mesh.open_table(name) for name in names], saved.fields)
        yield Scorer(saved, _model(saved, embeddings))


def _model(saved: SavedModel, embeddings: Module) -> Module:
    """Return the model with its saved parameters.

    Raises:
        DataError: Its settings and its parameters are not of one model.
    """
    # Code that the user trusts may draw initial values as it likes.
    elements = sum(array.size for array in saved.dense.values())
    bound = elements if saved.spec.model.name in MODEL_NAMES else None
    try:
        model = make_model(saved.spec, saved.fields, embeddings, bound)
        model.load_state_dict(saved.dense)
    except (MemoryError, KeyError, ValueError, TypeError, IndexError) as error:
        if isinstance(error, GradmeshError):
            raise
        raise DataError(
            f"{saved.tables.parent}: settings and parameters are not of one model: {error}"
        ) from error
    return model
