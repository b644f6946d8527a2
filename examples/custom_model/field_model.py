"""A custom model: the dense features of a sample compute a gate for each category."""

import gradmesh as gm


class GatedSum(gm.nn.Module):
    """Score clicks by the gated sum of all rows."""

    def __init__(self, embeddings, fields, config, generator):
        super().__init__()
        self.embeddings = embeddings
        self.gates = gm.nn.Linear(fields.dense_features, fields.features, generator=generator)
        self.top = gm.nn.MLP((config.dim, *config.top, 1), generator=generator)

    def forward(self, dense, ids):
        """Return the log-odds of a click, [batch]."""
        rows = self.embeddings(ids)  # [batch, features, dim], from the servers
        gates = self.gates(gm.tensor(dense)).sigmoid()  # [batch, features]
        mixed = (rows * gates.reshape(*gates.shape, 1)).sum(dim=1)
        return self.top(mixed).reshape(-1)


def build(embeddings, fields, config, generator):
    """Build the model on each trainer; the generator gives all of them equal parameters."""
    return GatedSum(embeddings, fields, config, generator)
