"""Errors of the engine; each is what torch raises, and the builtin a Python user expects."""

from gradmesh.base_error import GradmeshError


class ShapeError(ValueError, RuntimeError, GradmeshError):
    """The shapes of arrays do not fit the operation."""


class DimError(ShapeError, IndexError):
    """The tensor does not have that axis, or the axis is empty where it must not be."""


class DtypeError(TypeError, RuntimeError, GradmeshError):
    """The operation does not support the dtype."""


class DeviceError(RuntimeError, GradmeshError):
    """Operands are on different devices."""


class DeviceUnavailable(RuntimeError, GradmeshError):
    """The device does not exist on this machine, or its library is not installed."""


class GraphReleased(RuntimeError, GradmeshError):
    """A second backward pass ran through a graph whose saved values were released."""


class InplaceError(RuntimeError, GradmeshError):
    """An in-place change would make gradients wrong."""


class GradientError(RuntimeError, GradmeshError):
    """A backward pass cannot start, or a gradient does not fit."""


class AnomalyError(ArithmeticError, RuntimeError, GradmeshError):
    """An op computed a NaN while anomaly detection is on; the message names the op."""
