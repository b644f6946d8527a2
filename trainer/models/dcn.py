"""The deep and cross network, second version: crossed features first, a deep network on top."""

from collections.abc import Sequence
from typing import Any, final

from gradmesh.engine.autograd import Tensor
from gradmesh.engine.backend import Generator
from gradmesh.engine.nn import MLP, CrossNetwork, Module
from gradmesh.trainer.models.inputs import side_by_side


@final
class DCNv2(Module):
    """Score clicks.

    Args:
        embeddings: Module that turns ids int64 [batch, ids] into [batch, features, dim].
        dense_features: Numbers that come with each sample.
        features: Categorical features.
        dim: Length of the embeddings' rows.
        cross_layers: How often features are multiplied with each other.
        top: Widths of the hidden layers after them.
        generator: Where initial values come from; the default stream if None.
    """

    def __init__(
        self,
        embeddings: Module,
        *,
        dense_features: int,
        features: int,
        dim: int,
        cross_layers: int = 2,
        top: Sequence[int] = (64, 32),
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        width = dense_features + features * dim
        self.embeddings = embeddings
        self.cross = CrossNetwork(width, cross_layers, generator=generator)
        self.top = MLP((width, *top, 1), generator=generator)

    def forward(self, dense: Any, ids: Any) -> Tensor:
        """Return the log-odds of a click, [batch]; arguments as DLRM's."""
        crossed = self.cross(side_by_side(dense, self.embeddings(ids)))
        scores: Tensor = self.top(crossed).reshape(-1)
        return scores
