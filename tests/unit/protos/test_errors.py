import pickle
import re

import grpc
import pytest

from gradmesh.protos import errors
from gradmesh.protos.errors import CATALOGUE, InternalError, MeshError, from_reason
from gradmesh.protos.reference import builtin_bases


def subclasses(cls: type[MeshError]) -> list[type[MeshError]]:
    return [leaf for child in cls.__subclasses__() for leaf in (child, *subclasses(child))]


ALL = [cls for cls in subclasses(MeshError) if cls.__module__ == errors.__name__]
by_class = pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)


def test_catalogue_holds_every_class_once() -> None:
    assert set(CATALOGUE.values()) == set(ALL)
    assert len(CATALOGUE) == len(ALL)


@by_class
def test_each_class_says_what_the_wire_needs(cls: type[MeshError]) -> None:
    words = re.sub(r"(?<!^)([A-Z])", r"_\1", cls.__name__).upper()

    assert "reason" in vars(cls), "an inherited reason would hide the class on the wire"
    assert cls.reason in (words, words.removesuffix("_ERROR"))
    assert len(cls.reason) <= 63
    assert cls.code in grpc.StatusCode.__members__
    assert cls.__doc__


@by_class
def test_errors_can_be_printed_and_pickled(cls: type[MeshError]) -> None:
    error = cls("no table 'x'; create it", table="x", count=3)

    copy = pickle.loads(pickle.dumps(error))

    assert str(error) == str(copy) == "no table 'x'; create it"
    assert type(copy) is cls
    assert copy.metadata == error.metadata == {"table": "x", "count": "3"}


def test_unavailable_means_repeatable() -> None:
    """DESIGN: UNAVAILABLE = repeat the call, ABORTED = repeat from a higher level."""
    for cls in ALL:
        # Our channels repeat a call with a new ticket; other clients have to ask for one first.
        needs_ticket = cls is errors.TicketRejected
        assert (cls.code == "UNAVAILABLE" or needs_ticket) == (cls.retry is errors.Retry.CALL)
        assert (cls.code == "ABORTED") == (cls.retry is errors.Retry.REFRESH)


# Builtin bases as of torch's error for the same case and of Python's; others: RuntimeError only.
ALSO: dict[str, set[type[Exception]]] = {
    "InvalidRequest": {
        ValueError
    },  # torch: ValueError for names and ranks, RuntimeError for shapes
    "InvalidFrame": {ValueError},
    "TicketRejected": {ConnectionError},
    "IdOutOfRange": {IndexError},  # torch: IndexError of embedding
    "TableNotFound": {KeyError},
    "FunctionNotFound": {KeyError, AttributeError},  # torch: AttributeError of the callee's pickle
    "RefNotFound": {KeyError},  # torch: RuntimeError
    "WorkerNotFound": {KeyError},  # torch: RuntimeError
    "WorkerLost": {ConnectionError},
    "Unreachable": {ConnectionError},  # torch: DistNetworkError, a RuntimeError
    "NestedTooDeep": {RecursionError},
    "Unauthenticated": {PermissionError},
    "Forbidden": {PermissionError},
    "DeadlineExceeded": {TimeoutError},  # torch: RuntimeError
    "GradientMissing": {TimeoutError},
}


@by_class
def test_errors_are_what_torch_raises_and_python_expects(cls: type[MeshError]) -> None:
    assert issubclass(cls, RuntimeError)
    expected = ALSO.get(cls.__name__, set())
    found = set(builtin_bases(cls)) - {RuntimeError}
    assert found == expected
    with pytest.raises(RuntimeError, match="the text"):
        raise cls("the text", worker="w")


def test_metadata_may_have_any_key() -> None:
    error = from_reason("TABLE_NOT_FOUND", "text", {"self": "a", "message": "b", "x y": "c"})

    assert error.metadata == {"self": "a", "message": "b", "x y": "c"}


def test_an_unknown_reason_is_an_internal_error() -> None:
    error = from_reason("FROM_THE_FUTURE", "text", {})

    assert type(error) is InternalError
    assert error.message == "text"


def test_tree_in_the_docstring_names_every_class() -> None:
    tree = errors.__doc__ or ""

    assert {cls.__name__ for cls in ALL} == set(re.findall(r"(?<=[─, ])[A-Z]\w+", tree)) & {
        cls.__name__ for cls in ALL
    }
