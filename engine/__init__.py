"""Numerics: array backend, tensors, autograd, layers, optimizers. Never imports the network."""
