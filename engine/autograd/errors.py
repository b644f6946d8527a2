"""Errors of the autograd engine."""


class GraphReleased(RuntimeError):
    """Report a second backward pass through a graph whose saved values are gone."""


class InplaceError(RuntimeError):
    """Report an in-place change that would make gradients wrong."""


class GradientError(RuntimeError):
    """Report a backward pass that cannot start or a gradient that does not fit."""


class AnomalyError(ArithmeticError, RuntimeError):
    """Report the op that made the first NaN while anomaly detection is on."""
