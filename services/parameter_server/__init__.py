"""The parameter server: shards of embedding tables, their gradients and optimizers."""
