"""The workloads of the hybrid benchmark: sizes and batches, the same on both sides."""

from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

VARIANTS: Final = 16
"""Different batches in turn, so that no cache holds the rows by chance."""
EPOCH: Final = 10
"""Batches of an epoch of the seed benchmark."""
LR: Final = 0.05
CLASSES: Final = 8
_SEED_WIDTH: Final = 512
_SEED_HIDDEN: Final = (256, 128, 64, 32)
_DENSE: Final = 13


class HybridLoad(NamedTuple):
    """One batch."""

    ids: NDArray[np.int64]
    """[n] with offsets, or [batch, tables]."""
    offsets: NDArray[np.int64] | None
    """Where each bag begins, [bags]; the same for every table."""
    dense: NDArray[np.float32] | None
    targets: NDArray[Any]

    @property
    def samples(self) -> int:
        """How many samples it has."""
        return len(self.ids) if self.offsets is None else len(self.offsets)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One workload.

    Args:
        name: Its name.
        trainers: How many.
        servers: How many.
        tables: How many, spread over the servers.
        rows: Of each table.
        dim: Elements of a row.
        hidden: Widths of the dense layers between the rows and the result.
        batch: Samples of a batch; 0 draws bags as the seed benchmark does, of 7 samples or so.
        prefetch: Batches that ours fetches ahead.
    """

    name: str
    trainers: int
    servers: int
    tables: int
    rows: int
    dim: int
    hidden: tuple[int, ...]
    batch: int = 0
    prefetch: int = 0

    @property
    def width(self) -> int:
        """Numbers of a sample that the dense layers begin with."""
        return self.tables * self.dim + (_DENSE if self.batch else 0)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Widths of all dense layers, first and last included."""
        return (self.inputs, *self.hidden, 1 if self.batch else CLASSES)

    @property
    def inputs(self) -> int:
        """Width of what enters the first layer; bags wider than that are cut into several."""
        if not self.batch and self.width % _SEED_WIDTH == 0:
            return _SEED_WIDTH
        return self.width

    def load(self, rank: int, variant: int) -> HybridLoad:
        """Draw a batch; the same for the same numbers."""
        rng = np.random.default_rng([rank, variant])
        if not self.batch:
            return self._bags(rng)
        # The power law that real features follow, cut off at the table's end.
        ids = (rng.zipf(1.05, (self.batch, self.tables)) - 1) % self.rows
        dense = rng.standard_normal((self.batch, _DENSE)).astype(np.float32)
        targets = (rng.random(self.batch) < 0.25).astype(np.float32)
        return HybridLoad(ids, None, dense, targets)

    def _bags(self, rng: np.random.Generator) -> HybridLoad:
        """Draw 20 to 50 ids in bags of 1 to 10, as the seed benchmark does."""
        count = int(rng.integers(20, 51))
        offsets = [0]
        while (following := offsets[-1] + int(rng.integers(1, 11))) < count:
            offsets.append(following)
        targets = rng.integers(0, CLASSES, len(offsets))
        # A bag that is cut gives several results, all of which have its target.
        cuts = self.width // self.inputs
        ids = rng.integers(0, self.rows, count)
        return HybridLoad(ids, np.array(offsets), None, np.repeat(targets, cuts))

    def as_dict(self) -> dict[str, Any]:
        """Return the shape as JSON holds it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "Shape":
        """Return the shape that `as_dict` described."""
        return cls(**{**plain, "hidden": tuple(plain["hidden"])})


def seed_shape(name: str, trainers: int, servers: int, embeddings: int, dim: int) -> Shape:
    """Return the seed benchmark: one table a server, or as many as make 512 numbers a sample."""
    tables = max(servers, -(-_SEED_WIDTH // dim))
    return Shape(
        name=name,
        trainers=trainers,
        servers=servers,
        tables=tables,
        rows=embeddings,
        dim=dim,
        hidden=_SEED_HIDDEN,
    )


def shapes(rows: int) -> dict[str, Shape]:
    """Return the workloads by name.

    Args:
        rows: Of each table of the realistic ones.
    """
    shared: dict[str, Any] = {"trainers": 2, "servers": 1, "tables": 26, "rows": rows, "dim": 64}
    found = [
        seed_shape("seed", 2, 1, 300, 64),
        Shape(name="realistic-b256", hidden=(512, 256), batch=256, **shared),
        Shape(name="realistic-b2048", hidden=(512, 256), batch=2048, **shared),
        Shape(name="embedding-bound", hidden=(16,), batch=2048, **shared),
        seed_shape("seed-t8-s8", 8, 8, 300, 64),
    ]
    return {shape.name: shape for shape in found}
