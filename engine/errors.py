"""Errors of the engine; each is what torch raises, and the builtin a Python user expects."""


class ShapeError(ValueError, RuntimeError):
    """Report arrays whose shapes do not fit the operation."""


class DimError(ShapeError, IndexError):
    """Report an axis that the tensor does not have, or that is empty where it must not be."""


class DtypeError(TypeError, RuntimeError):
    """Report a dtype that the operation cannot take."""


class DeviceError(RuntimeError):
    """Report operands that live on different devices."""


class DeviceUnavailable(RuntimeError):
    """Report a device that this machine or this installation does not have."""


class GraphReleased(RuntimeError):
    """Report a second backward pass through a graph whose saved values are gone."""


class InplaceError(RuntimeError):
    """Report an in-place change that would make gradients wrong."""


class GradientError(RuntimeError):
    """Report a backward pass that cannot start or a gradient that does not fit."""


class AnomalyError(ArithmeticError, RuntimeError):
    """Report the op that made the first NaN while anomaly detection is on."""
