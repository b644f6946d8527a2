"""Errors of the array layer; each derives from the builtin a Python user expects."""


class ShapeError(ValueError):
    """Report arrays whose shapes do not fit the operation."""


class DtypeError(TypeError):
    """Report a dtype that the operation cannot take."""


class DeviceError(RuntimeError):
    """Report operands that live on different devices."""


class DeviceUnavailable(RuntimeError):
    """Report a device that this machine or this installation does not have."""
