"""Tensors, gradients of rows and workers as typed values, and back."""

from typing import Any

import numpy as np
import pytest

from gradmesh.engine.autograd import RowGrad, Tensor
from gradmesh.engine.nn import Parameter
from gradmesh.protos.common.v1 import value_pb2 as pb
from gradmesh.protos.errors import InvalidFrame
from gradmesh.sdk.rpc.ids import WorkerInfo
from gradmesh.sdk.rpc.values import ValueDecoder, ValueEncoder


def round_trip(obj: object) -> tuple[Any, ValueEncoder, ValueDecoder]:
    outgoing = ValueEncoder()
    value = pb.Value.FromString(outgoing.add(obj).SerializeToString())
    incoming = ValueDecoder(outgoing.arrays, borrowed=True)
    return incoming.read(value), outgoing, incoming


@pytest.mark.parametrize("requires_grad", [False, True])
def test_tensors_arrive_as_tensors_and_arrays_as_arrays(requires_grad: bool) -> None:
    sent = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3), requires_grad)

    (got, array), _, _ = round_trip([sent, sent.data])

    assert type(got) is Tensor
    assert got.requires_grad is requires_grad
    assert got.is_leaf
    assert np.array_equal(got.data, sent.data)
    assert type(array) is np.ndarray


def test_a_parameter_arrives_as_a_plain_tensor() -> None:
    got, _, _ = round_trip(Parameter(np.ones(2, np.float32)))

    assert type(got) is Tensor
    assert got.requires_grad


def test_a_view_arrives_equal_and_on_memory_of_its_own() -> None:
    data = np.arange(12.0).reshape(3, 4)

    got, _, _ = round_trip(Tensor(data.T[::2]))
    got.data[0, 0] = 99

    assert data[0, 0] == 0
    assert got.data[1].tolist() == [2, 6, 10]


def test_both_ends_name_tensors_in_the_same_order() -> None:
    a, b, c = (Tensor(np.full(1, n, np.float32)) for n in range(3))

    _, outgoing, incoming = round_trip({"z": [a], "a": {"y": b, "b": c}})

    assert [t.item() for t in outgoing.tensors] == [0, 1, 2]
    assert [t.item() for t in incoming.tensors] == [0, 1, 2]


def test_gradients_of_rows_stay_sparse() -> None:
    sent = RowGrad(np.array([3, 1]), np.ones((2, 4), np.float32), 9, coalesced=True)

    got, _, _ = round_trip(sent)

    assert got.ids.tolist() == [3, 1]
    assert (got.num_rows, got.coalesced) == (9, True)
    assert np.array_equal(got.rows, sent.rows)


def test_workers_are_serialised() -> None:
    for info in (WorkerInfo("a", 3, 7), WorkerInfo("b")):
        assert round_trip(info)[0] == info


@pytest.mark.parametrize(
    "value",
    [
        pb.Value(tensor_value=pb.TensorValue(array_index=9)),
        pb.Value(tensor_value=pb.TensorValue(array_index=0, requires_grad=True)),
        pb.Value(rows_value=pb.RowsValue(ids_index=0, rows_index=9, num_rows=5)),
        pb.Value(rows_value=pb.RowsValue(ids_index=0, rows_index=1, num_rows=2)),
        pb.Value(rows_value=pb.RowsValue(ids_index=1, rows_index=1, num_rows=5)),
    ],
    ids=["nowhere", "integers", "rows nowhere", "id beyond", "float ids"],
)
def test_invalid_values_are_refused(value: pb.Value) -> None:
    arrays = [np.arange(3), np.ones((3, 2), np.float32)]

    with pytest.raises(InvalidFrame):
        ValueDecoder(arrays, borrowed=False).read(value)
