import pytest

from gradmesh.protos import limits
from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.errors import InvalidRequest, TableConflict, TableNotFound
from gradmesh.services.coordinator.catalogue import Catalogue, check_spec


def test_an_equal_table_is_not_created_again(say):
    catalogue = Catalogue([])

    first = catalogue.is_new(say.table())
    catalogue.enter(say.table())

    assert (first, catalogue.is_new(say.table())) == (True, False)
    assert catalogue.describe("user") == say.table()


def test_a_conflict_names_what_differs(say):
    catalogue = Catalogue([say.table()])
    other = say.table(rows=11)
    other.optimizer.settings["lr"] = 0.2

    with pytest.raises(TableConflict) as caught:
        catalogue.is_new(other)

    assert "rows 10, not 11" in str(caught.value)
    assert "optimizer sgd(lr=0.1), not sgd(lr=0.2)" in str(caught.value)
    assert "dim" not in str(caught.value)


def test_an_unknown_table_is_named_with_those_that_exist(say):
    catalogue = Catalogue([say.table("b"), say.table("a")])

    with pytest.raises(TableNotFound, match=r"no table 'c'.*tables: a, b"):
        catalogue.describe("c")

    assert [spec.name for spec in catalogue.all()] == ["a", "b"]


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"rows": 0},
        {"rows": limits.MAX_TABLE_ROWS + 1},
        {"dim": 0},
        {"dim": limits.MAX_TABLE_DIM + 1},
        {"dtype": "ELEMENT_TYPE_INT32"},
        {"dtype": "ELEMENT_TYPE_UNSPECIFIED"},
        {"initializer": table_pb2.Recipe(name="magic")},
        {"initializer": table_pb2.Recipe(name="normal", settings={"mean": 0.0})},
        {"initializer": table_pb2.Recipe(name="constant", settings={"value": float("nan")})},
        {"optimizer": table_pb2.Recipe(name="magic", settings={"lr": 0.1})},
        {"optimizer": table_pb2.Recipe(name="sgd")},
        {"optimizer": table_pb2.Recipe(name="sgd", settings={"lr": -1.0})},
        {"optimizer": table_pb2.Recipe(name="sgd", settings={"lr": 0.1, "magic": 1.0})},
        {"optimizer": table_pb2.Recipe(name="sgd", settings={"lr": 0.1, "momentum": float("inf")})},
    ],
)
def test_malformed_table_specs_are_refused(say, change):
    spec = say.table()
    spec.MergeFrom(table_pb2.TableSpec(**change))
    for name, value in change.items():
        if not value or value == "ELEMENT_TYPE_UNSPECIFIED":
            spec.ClearField(name)
        elif isinstance(value, table_pb2.Recipe):
            getattr(spec, name).CopyFrom(value)

    with pytest.raises(InvalidRequest):
        check_spec(spec)
