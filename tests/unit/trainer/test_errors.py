"""Errors have the builtin bases of torch's errors and of Python's for the same case."""

import pytest

from gradmesh.base_error import GradmeshError
from gradmesh.engine import errors as engine
from gradmesh.protos.reference import builtin_bases
from gradmesh.sdk.process.setting import AddressInUse
from gradmesh.sdk.rpc import current as rpc
from gradmesh.trainer import errors as trainer

# torch raises a RuntimeError, or a class of it, in each of these cases.
TABLE: list[tuple[type[BaseException], set[type[BaseException]]]] = [
    (trainer.CollectiveTimeout, {TimeoutError, RuntimeError}),
    (trainer.TrainersMissing, {TimeoutError, RuntimeError}),
    (trainer.PeerLost, {ConnectionError, RuntimeError}),
    (trainer.HandshakeRefused, {ConnectionError, RuntimeError}),
    (trainer.CollectiveMismatch, {ValueError, RuntimeError}),
    (trainer.TrainingDiverged, {ValueError, RuntimeError}),
    (trainer.BackendMissing, {ImportError, RuntimeError}),
    (trainer.DataError, {ValueError}),  # of our own files
    (trainer.CodeNotTrusted, {PermissionError}),
    (trainer.GroupAborted, {RuntimeError}),
    (trainer.GroupClosed, {RuntimeError}),
    (trainer.NoDefaultGroup, {RuntimeError}),
    (trainer.ReductionError, {RuntimeError}),
    (trainer.InputsExhausted, {RuntimeError}),
    (AddressInUse, {OSError, RuntimeError}),
    (rpc.RpcNotRunning, {RuntimeError}),
    (rpc.RefLeak, {RuntimeError}),
    (engine.ShapeError, {ValueError, RuntimeError}),
    (engine.DtypeError, {TypeError, RuntimeError}),
    (engine.DeviceError, {RuntimeError}),
    (engine.DeviceUnavailable, {RuntimeError}),
    (engine.GraphReleased, {RuntimeError}),
    (engine.InplaceError, {RuntimeError}),
    (engine.GradientError, {RuntimeError}),
    (engine.AnomalyError, {ArithmeticError, RuntimeError}),
]


@pytest.mark.parametrize(
    ("cls", "builtins"), TABLE, ids=lambda value: getattr(value, "__name__", "")
)
def test_builtin_bases(cls: type[BaseException], builtins: set[type[BaseException]]) -> None:
    assert set(builtin_bases(cls)) == builtins


def test_the_table_is_complete() -> None:
    listed = {cls for cls, _ in TABLE}
    for module in (trainer, engine, rpc):
        for thing in vars(module).values():
            if thing is GradmeshError:
                continue  # the base of all errors
            if isinstance(thing, type) and issubclass(thing, BaseException):
                assert listed & set(thing.__mro__), f"{thing.__name__} is not in the table"
