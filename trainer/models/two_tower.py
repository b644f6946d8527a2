"""Two towers: one for the user, one for the item; the score is the product of what they say.

What a tower says about an item does not depend on the user, so that items can be ranked by a search
for the nearest vectors.
"""

from collections.abc import Sequence
from typing import Any, final

from gradmesh.engine.autograd import Tensor
from gradmesh.engine.backend import Generator
from gradmesh.engine.nn import MLP, Module
from gradmesh.trainer.models.inputs import side_by_side


@final
class TwoTower(Module):
    """Score pairs of user and item.

    Args:
        embeddings: Module that turns ids int64 [batch, ids] into [batch, features, dim].
        dense_features: Numbers that come with each sample; they are the user's.
        features: Categorical features.
        dim: Length of the embeddings' rows, and of the towers' vectors.
        item_features: Which features are the item's; the last one if empty.
        hidden: Widths of the hidden layers of both towers.
        generator: Where initial values come from; the default stream if None.

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
