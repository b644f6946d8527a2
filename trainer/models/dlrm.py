"""The deep learning recommendation model: dense and categorical features, and their pairs.

    dense [batch, n] -- bottom MLP --> [batch, dim] --+-- all pairs of dot products --+
    ids [batch, features] -- embeddings --> [...dim] -+                               |
                                                      +-- the dense vector itself ----+--> top MLP

Embeddings come from outside, so the same model runs on rows of this process or of servers.
"""

from collections.abc import Sequence
from typing import Any, final

from gradmesh.engine.autograd import Tensor, as_tensor
from gradmesh.engine.autograd.ops import cat, unsqueeze
from gradmesh.engine.backend import Generator
from gradmesh.engine.nn import MLP, Module
from gradmesh.engine.nn.functional import dot_interaction


@final
class DLRM(Module):
    """Score clicks.

    Args:
        embeddings: Module that turns ids int64 [batch, ids] into [batch, features, dim].
        dense_features: Numbers that come with each sample; without any there is no bottom MLP.
        features: Categorical features.
        dim: Length of the embeddings' rows.
        bottom: Widths of the hidden layers for the dense features.
        top: Widths of the hidden layers for the interactions.
        generator: Where initial values come from; the default stream if None.
    """

    def __init__(
        self,
        embeddings: Module,
        *,
        dense_features: int,
        features: int,
        dim: int,
        bottom: Sequence[int] = (32,),
        top: Sequence[int] = (64, 32),
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.bottom: MLP | None = None
        width = features * (features - 1) // 2
        if dense_features:
            self.bottom = MLP((dense_features, *bottom, dim), final_relu=True, generator=generator)
            width += features + dim
        self.top = MLP((width, *top, 1), generator=generator)

    def forward(self, dense: Any, ids: Any) -> Tensor:
        """Return the log-odds of a click.

        Args:
            dense: float32 [batch, dense_features], tensor or array.
            ids: int64 [batch, ids of a sample].

        Returns:
            [batch].
        """
        rows = self.embeddings(ids)
        if self.bottom is None:
            alone: Tensor = self.top(dot_interaction(rows)).reshape(-1)
            return alone
        vector = self.bottom(as_tensor(dense))
        products = dot_interaction(cat([unsqueeze(vector, 1), rows], 1))
        scores: Tensor = self.top(cat([vector, products], 1)).reshape(-1)
        return scores
