"""Tables in one request, and ids as users pass them."""

from types import SimpleNamespace

import numpy as np
import pytest

from gradmesh.engine.autograd import Tensor
from gradmesh.protos.errors import IdOutOfRange, InvalidRequest
from gradmesh.sdk.table.table_set import TableSet, as_ids
from gradmesh.sdk.table.wire import LOSSLESS


def table(name, dim=4, servers="mesh", dtype=np.float32):
    return SimpleNamespace(
        wire=LOSSLESS,
        name=name,
        dim=dim,
        dtype=np.dtype(dtype),
        first_id=0,
        last_id=9,
        servers=servers,
        metrics=None,
        timeout_s=1,
    )


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_ids_of_every_integer_type_are_taken(dtype):
    ids = as_ids(np.array([[0, 9]], dtype), "t")

    assert ids.dtype == np.int64
    assert ids.tolist() == [[0, 9]]


def test_ids_keep_their_shape():
    assert as_ids(7, "t").shape == ()
    assert as_ids(Tensor(np.array([[1, 2]])), "t").shape == (1, 2)


def test_no_ids_have_any_type():
    assert as_ids([], "t").dtype == np.int64
    assert as_ids(np.empty((0, 2), np.float32), "t").shape == (0, 2)


@pytest.mark.parametrize("bad", [[0.0], [True], ["a"], [2**70], [None]])
def test_values_that_are_not_integers_are_refused(bad):
    with pytest.raises(InvalidRequest, match="must be integers"):
        as_ids(bad, "t")


def test_an_id_beyond_int64_is_named_as_it_was_given():
    with pytest.raises(IdOutOfRange, match=f"table 't': id {2**63 + 5} "):
        as_ids(np.array([2**63 + 5], np.uint64), "t")


def test_tables_of_one_dim_and_type_form_a_group():
    tables = TableSet([table("a"), table("b", 8), table("c"), table("d", dtype=np.float64)])

    assert tables.group_of.tolist() == [0, 1, 0, 2]
    assert tables.row_bytes == [16, 32, 16, 32]


def test_tables_of_two_meshes_do_not_mix():
    with pytest.raises(InvalidRequest, match="one mesh"):
        TableSet([table("a"), table("b", servers="another")])
    with pytest.raises(InvalidRequest, match="at least one"):
        TableSet([])
