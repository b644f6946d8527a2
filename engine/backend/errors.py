"""Errors of the array layer; each is what torch raises, and the builtin a Python user expects."""


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
