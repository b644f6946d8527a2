"""Encoding of user values: plain values, tensors, row gradients, workers and modules.

Tensors are listed in order, because distributed autograd attaches its nodes to them.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias, final

from gradmesh.engine.autograd import RowGrad, Tensor
from gradmesh.engine.backend import to_numpy
from gradmesh.protos.common.v1 import value_pb2 as pb
from gradmesh.protos.common.v1 import worker_pb2
from gradmesh.protos.dtype import wire_dtype
from gradmesh.protos.errors import InvalidFrame
from gradmesh.protos.frame import Array
from gradmesh.protos.value import from_value, to_value
from gradmesh.sdk.rpc.ids import WorkerInfo


@final
class ModuleCodec(NamedTuple):
    """How objects of a class are sent: as a reference and a small message.

    Args:
        cls: The class.
        write: Returns the reference of an object, and the message without the reference.
        read: Makes an object from a received reference and the message.
    """

    cls: type
    write: Callable[[Any], tuple[Any, pb.ModuleValue]]
    read: Callable[[Any, pb.ModuleValue], Any]


_carrier: ModuleCodec | None = None


def install_module_codec(module_codec: ModuleCodec) -> None:
    """Set the codec of remote modules."""
    global _carrier
    _carrier = module_codec


def module_codec() -> ModuleCodec | None:
    """Return the codec of remote modules; None in a process without rpc."""
    return _carrier


SendRef: TypeAlias = Callable[[Any], pb.RemoteRef | None]
"""Returns the wire message of a reference, or None for other objects."""

ReceiveRef: TypeAlias = Callable[[pb.RemoteRef], Any]
"""Returns the reference of a received wire message."""


@final
class ValueEncoder:
    """Encodes the values of one message, in the order in which they are added.

    Args:
        send_ref: Encodes references.

    Attributes:
        arrays: The arrays that the values point to.
        tensors: The tensors among them, in order.
    """

    __slots__ = ("_send_ref", "arrays", "tensors")

    def __init__(self, send_ref: SendRef | None = None) -> None:
        self._send_ref = send_ref
        self.arrays: list[Array] = []
        self.tensors: list[Tensor] = []

    def add(self, obj: object) -> pb.Value:
        """Return the typed value of an object.

        Raises:
            InvalidRequest: It cannot be sent.
        """
        if type(obj) is Tensor:
            return self._tensor(obj, self.arrays)
        return to_value(obj, self.arrays, self._other)

    def _tensor(self, tensor: Tensor, arrays: list[Array]) -> pb.Value:
        self.tensors.append(tensor)
        index = _append(arrays, tensor.data)
        sent = pb.TensorValue(array_index=index, requires_grad=tensor.requires_grad)
        return pb.Value(tensor_value=sent)

    def _other(self, obj: object, arrays: list[Array]) -> pb.Value | None:
        if isinstance(obj, Tensor):
            return self._tensor(obj, arrays)
        if isinstance(obj, RowGrad):
            rows = pb.RowsValue(
                ids_index=_append(arrays, obj.ids),
                rows_index=_append(arrays, obj.rows),
                num_rows=obj.num_rows,
                coalesced=obj.coalesced,
            )
            return pb.Value(rows_value=rows)
        if isinstance(obj, WorkerInfo):
            worker = worker_pb2.WorkerId(name=obj.name, incarnation=obj.incarnation, rank=obj.rank)
            return pb.Value(worker_value=worker)
        if self._send_ref is None:
            return None
        how = module_codec()
        if how is not None and isinstance(obj, how.cls):
            rref, module = how.write(obj)
            module.MergeFrom(pb.ModuleValue(module=self._send_ref(rref)))
            return pb.Value(module_value=module)
        ref = self._send_ref(obj)
        return None if ref is None else pb.Value(ref_value=ref)


@final
class ValueDecoder:
    """Decodes the values of one message.

    Args:
        arrays: The arrays of their message.
        borrowed: Whether the arrays are gone when the handler returns.
        receive_ref: Decodes references.

    """

    __slots__ = ("_arrays", "_borrowed", "_receive_ref", "_tensors")

    def __init__(
        self, arrays: list[Array], borrowed: bool, receive_ref: ReceiveRef | None = None
    ) -> None:
        self._borrowed = borrowed
        self._arrays = [self._own(array) for array in arrays]
        self._receive_ref = receive_ref
        self._tensors: list[tuple[int, Tensor]] = []

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors among the values read so far, in the sender's order."""
        # Maps have no order on the wire, but array indices follow the sender's order.
        return [tensor for _, tensor in sorted(self._tensors, key=lambda pair: pair[0])]

    def read(self, value: pb.Value) -> Any:
        """Return an object; its arrays are the receiver's own.

        Raises:
            InvalidFrame: The value is malformed.
        """
        if value.HasField("tensor_value"):
            return self._tensor(value.tensor_value)
        return from_value(value, self._arrays, self._other)

    def read_all(
        self, args: Iterable[pb.Value], kwargs: Mapping[str, pb.Value]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return positional and named arguments."""
        positional = [self.read(value) for value in args]
        return positional, {name: self.read(value) for name, value in kwargs.items()}

    def _own(self, array: Array) -> Array:
        # Copy, because views of received bytes are read-only.
        return array.copy() if self._borrowed or not array.flags.writeable else array

    def _other(self, kind: str, value: pb.Value, arrays: list[Array]) -> Any:
        match kind:
            case "tensor_value":
                return self._tensor(value.tensor_value)
            case "rows_value":
                return self._rows(value.rows_value)
            case "worker_value":
                worker = value.worker_value
                rank = worker.rank if worker.HasField("rank") else None
                return WorkerInfo(worker.name, rank, worker.incarnation)
            case "module_value":
                return self._module(value.module_value)
        return value.ref_value if self._receive_ref is None else self._receive_ref(value.ref_value)

    def _tensor(self, value: pb.TensorValue) -> Tensor:
        array = self._array(value.array_index)
        if value.requires_grad and array.dtype.kind not in "fV":
            raise InvalidFrame(f"a tensor of {array.dtype} cannot require gradients")
        tensor = Tensor(array, value.requires_grad)
        self._tensors.append((value.array_index, tensor))
        return tensor

    def _rows(self, value: pb.RowsValue) -> RowGrad:
        ids, rows = self._array(value.ids_index), self._array(value.rows_index)
        fits = ids.ndim == 1 and ids.dtype == "int64" and rows.ndim and len(ids) == len(rows)
        if not fits or (len(ids) and not 0 <= ids.min() <= ids.max() < value.num_rows):
            raise InvalidFrame(
                f"gradients of rows with numbers {ids.dtype} {ids.shape}, rows {rows.shape} and "
                f"{value.num_rows} rows in all do not fit together"
            )
        return RowGrad(ids, rows, value.num_rows, value.coalesced)

    def _module(self, value: pb.ModuleValue) -> Any:
        how = module_codec()
        if self._receive_ref is None or how is None:
            return value
        if not value.HasField("module"):
            raise InvalidFrame("a remote module without a reference to it")
        return how.read(self._receive_ref(value.module), value)

    def _array(self, index: int) -> Array:
        if index >= len(self._arrays):
            raise InvalidFrame("a typed value that points to an array that was not sent")
        return self._arrays[index]


def _append(arrays: list[Array], data: Any) -> int:
    array = to_numpy(data)
    wire_dtype(array.dtype)
    arrays.append(array)
    return len(arrays) - 1
