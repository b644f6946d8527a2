"""Which tables exist. Pure."""

from typing import final

from gradmesh.protos import limits
from gradmesh.protos.coordinator.v1 import table_pb2 as pb
from gradmesh.protos.dtype import numpy_dtype
from gradmesh.protos.errors import InvalidRequest, TableConflict, TableNotFound
from gradmesh.protos.naming import check_name
from gradmesh.sdk.table.recipe import initializer_of, rule_of


@final
class Catalogue:
    """The tables by name.

    Args:
        specs: Tables that existed before a restart of the coordinator.
    """

    def __init__(self, specs: list[pb.TableSpec]) -> None:
        self._specs = {spec.name: spec for spec in specs}

    def create(self, spec: pb.TableSpec) -> bool:
        """Enter a table; return False when an equal one was there.

        Raises:
            InvalidRequest: The specification makes no sense.
            TableConflict: The name is taken by another specification.
        """
        _check(spec)
        held = self._specs.get(spec.name)
        if held is None:
            self._specs[spec.name] = spec
            return True
        if held != spec:
            raise TableConflict(
                f"table {spec.name!r} exists with {_differences(held, spec)}; use another name",
                table=spec.name,
            )
        return False

    def describe(self, name: str) -> pb.TableSpec:
        """Return a table's specification.

        Raises:
            TableNotFound: There is no such table.
        """
        if name not in self._specs:
            known = ", ".join(sorted(self._specs)) or "none"
            raise TableNotFound(
                f"no table {name!r}; create it first (tables: {known[:200]})", table=name
            )
        return self._specs[name]

    def all(self) -> list[pb.TableSpec]:
        """Return all specifications by name."""
        return [self._specs[name] for name in sorted(self._specs)]


def _check(spec: pb.TableSpec) -> None:
    check_name("table", spec.name)
    if not 0 < spec.rows <= limits.MAX_TABLE_ROWS:
        raise InvalidRequest(f"table {spec.name!r}: rows must be 1 to {limits.MAX_TABLE_ROWS}")
    if not 0 < spec.dim <= limits.MAX_TABLE_DIM:
        raise InvalidRequest(f"table {spec.name!r}: dim must be 1 to {limits.MAX_TABLE_DIM}")
    if numpy_dtype(spec.dtype).kind != "f":
        raise InvalidRequest(f"table {spec.name!r}: dtype must be float16, float32 or float64")
    initializer_of(spec.initializer)
    rule_of(spec.optimizer)


def _differences(held: pb.TableSpec, asked: pb.TableSpec) -> str:
    fields = ("rows", "dim", "dtype", "seed", "initializer", "optimizer")
    return "; ".join(
        f"{name} {_show(getattr(held, name))}, not {_show(getattr(asked, name))}"
        for name in fields
        if getattr(held, name) != getattr(asked, name)
    )


def _show(value: object) -> str:
    if isinstance(value, pb.Recipe):
        settings = ", ".join(f"{k}={value.settings[k]:g}" for k in sorted(value.settings))
        return f"{value.name}({settings})"
    return str(value)
