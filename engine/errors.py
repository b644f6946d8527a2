"""Errors of the engine; each is what torch raises, and the builtin a Python user expects."""

from gradmesh.base_error import GradmeshError


class ShapeError(ValueError, RuntimeError, GradmeshError):
    """Report arrays whose shapes do not fit the operation."""


class DimError(ShapeError, IndexError):
    """Report an axis that the tensor does not have, or that is empty where it must not be."""


class DtypeError(TypeError, RuntimeError, GradmeshError):
    """Report a dtype that the operation cannot take."""


class DeviceError(RuntimeError, GradmeshError):
    """Report operands that live on different devices."""


class DeviceUnavailable(RuntimeError, GradmeshError):
    """Report a device that this machine or this installation does not have."""


class GraphReleased(RuntimeError, GradmeshError):
    """Report a second backward pass through a graph whose saved values are gone."""


class InplaceError(RuntimeError, GradmeshError):
    """Report an in-place change that would make gradients wrong."""


class GradientError(RuntimeError, GradmeshError):
    """Report a backward pass that cannot start or a gradient that does not fit."""


class AnomalyError(ArithmeticError, RuntimeError, GradmeshError):
    """Report the op that made the first NaN while anomaly detection is on."""
