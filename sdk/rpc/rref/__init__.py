"""References to values that stay with the worker that made them."""
