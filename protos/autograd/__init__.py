"""The contract of distributed autograd."""
