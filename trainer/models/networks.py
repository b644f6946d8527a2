"""Click models; embeddings are an argument, so that rows may be of this process or of servers."""

from collections.abc import Sequence
from typing import Any, final

from gradmesh.engine.autograd import Tensor, as_tensor
from gradmesh.engine.autograd.ops import cat, factorization_machine, unsqueeze
from gradmesh.engine.backend import Generator
from gradmesh.engine.nn import MLP, CrossNetwork, Linear, Module
from gradmesh.engine.nn.functional import dot_interaction


def side_by_side(dense: Any, rows: Tensor) -> Tensor:
    """Return float32 [batch, dense features + features * dim]."""
    flat: Tensor = rows.reshape(rows.shape[0], -1)
    numbers = as_tensor(dense)
    if not numbers.shape[1]:
        return flat
    joined: Tensor = cat([numbers, flat], 1)
    return joined


@final
class DLRM(Module):
    """The deep learning recommendation model: dense and categorical features, and their pairs.

        dense [batch, n] -- bottom MLP --> [batch, dim] --+-- all pairs of dot products --+
        ids [batch, features] -- embeddings --> [...dim] -+                               |
                                                          +-- the dense vector itself ----+--> top

    Args:
        embeddings: Module that maps ids int64 [batch, ids] to [batch, features, dim].
        dense_features: Dense values of a sample; without any there is no bottom MLP.
        features: Categorical features.
        dim: Length of the embeddings' rows.
        bottom: Widths of the hidden layers for the dense features.
        top: Widths of the hidden layers for the interactions.
        generator: Source of initial values; the default generator if None.
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


@final
class DCNv2(Module):
    """The deep and cross network, version 2: crossed features first, a deep network on top.

    Args:
        embeddings: Module that maps ids int64 [batch, ids] to [batch, features, dim].
        dense_features: Dense values of a sample.
        features: Categorical features.
        dim: Length of the embeddings' rows.
        cross_layers: How often features are multiplied with each other.
        top: Widths of the hidden layers after them.
        generator: Source of initial values; the default generator if None.
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


@final
class WideDeep(Module):
    """Wide & Deep; with `pairs` DeepFM: a weight for each id, a deep network, pairs of ids.

    The first element of a row is the id's weight, the others are its vector: one lookup for both.

    Args:
        embeddings: Module that maps ids int64 [batch, ids] to [batch, features, 1 + dim].
        dense_features: Dense values of a sample.
        features: Categorical features.
        dim: Length of the ids' vectors.
        top: Widths of the deep part's hidden layers.
        pairs: Whether to add a factorization machine.
        generator: Source of initial values; the default generator if None.
    """

    def __init__(
        self,
        embeddings: Module,
        *,
        dense_features: int,
        features: int,
        dim: int,
        top: Sequence[int] = (64, 32),
        pairs: bool = False,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.pairs = pairs
        self.wide = Linear(dense_features, 1, generator=generator) if dense_features else None
        self.deep = MLP((dense_features + features * dim, *top, 1), generator=generator)

    def forward(self, dense: Any, ids: Any) -> Tensor:
        """Return the log-odds of a click, [batch]; arguments as DLRM's."""
        rows = self.embeddings(ids)
        weights, vectors = rows[:, :, 0], rows[:, :, 1:]
        scores: Tensor = weights.sum(dim=1) + self.deep(side_by_side(dense, vectors)).reshape(-1)
        if self.wide is not None:
            scores = scores + self.wide(as_tensor(dense)).reshape(-1)
        if self.pairs:
            scores = scores + factorization_machine(vectors).reshape(-1)
        return scores


@final
class TwoTower(Module):
    """A tower for the user and one for the item; the score is the product of their vectors.

    An item's vector does not depend on the user, so that a nearest-neighbour search can rank items.

    Args:
        embeddings: Module that maps ids int64 [batch, ids] to [batch, features, dim].
        dense_features: Dense values of a sample; they are the user's.
        features: Categorical features.
        dim: Length of the embeddings' rows, and of the towers' vectors.
        item_features: Which features are the item's; the last one if empty.
        hidden: Widths of the hidden layers of both towers.
        generator: Source of initial values; the default generator if None.

    Raises:
        ValueError: A tower has no feature.
    """

    def __init__(
        self,
        embeddings: Module,
        *,
        dense_features: int,
        features: int,
        dim: int,
        item_features: Sequence[int] = (),
        hidden: Sequence[int] = (64,),
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        items = sorted(set(item_features or (features - 1,)))
        users = [feature for feature in range(features) if feature not in items]
        if items[0] < 0 or items[-1] >= features or not (users or dense_features):
            raise ValueError(
                f"item_features is {items}; each must be one of 0 … {features - 1}, and some"
                " feature must be left to the user"
            )
        self.embeddings = embeddings
        self._items, self._users = items, users
        width = dense_features + len(users) * dim
        self.user = MLP((width, *hidden, dim), generator=generator)
        self.item = MLP((len(items) * dim, *hidden, dim), generator=generator)

    def forward(self, dense: Any, ids: Any) -> Tensor:
        """Return the log-odds of a click, [batch]; arguments as DLRM's."""
        rows = self.embeddings(ids)
        user = self.user(side_by_side(dense, rows[:, self._users]))
        item = self.item(rows[:, self._items].reshape(rows.shape[0], -1))
        scores: Tensor = (user * item).sum(dim=1)
        return scores
