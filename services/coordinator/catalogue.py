"""The table catalogue: which tables exist. Pure."""

from collections.abc import Sequence
from typing import final

from gradmesh.protos import limits
from gradmesh.protos.bound import Tally
from gradmesh.protos.coordinator.v1 import table_pb2 as pb
from gradmesh.protos.dtype import numpy_dtype
from gradmesh.protos.errors import InvalidRequest, TableConflict, TableNotFound
from gradmesh.protos.limits import check_name
from gradmesh.protos.page import page_of
from gradmesh.sdk.table.gradients import BadGradients
from gradmesh.sdk.table.lifetime import Admission, Eviction
from gradmesh.sdk.table.recipe import initializer_of, rule_of
from gradmesh.sdk.table.schedule import schedule_of
from gradmesh.sdk.table.spec import least_max_bytes, row_bytes


@final
class Catalogue:
    """The tables by name.

    Args:
        specs: Tables that existed before a restart of the coordinator.
    """

    def __init__(self, specs: list[pb.TableSpec]) -> None:
        self._specs = {spec.name: spec for spec in specs}
        # Who made them is not in the journal: those from before a restart count in the total only.
        self._made = Tally(limits.TABLES)
        self._made.add("", len(specs))

    def is_new(self, spec: pb.TableSpec, creator: str = "") -> bool:
        """Return whether a table is new and may be made; False if an equal one exists.

        Args:
            spec: A specification that `check_spec` accepts.
            creator: Who asks for it; empty if that is not counted.

        Raises:
            TableConflict: The name is taken by another specification.
            LimitExceeded: There are too many tables.
        """
        held = self._specs.get(spec.name)
        if held is None:
            self._made.check(creator)
            return True
        if _plain(held) != _plain(spec):
            raise TableConflict(
                f"table {spec.name!r} exists with {_differences(held, spec)}; use another name",
                table=spec.name,
            )
        return False

    def enter(self, spec: pb.TableSpec, creator: str = "") -> None:
        """Add a new table."""
        self._specs[spec.name] = spec
        self._made.add(creator)

    def describe(self, name: str) -> pb.TableSpec:
        """Return a table's specification.

        Raises:
            TableNotFound: The table does not exist.
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

    def page(self, token: str, page_size: int) -> tuple[Sequence[pb.TableSpec], str]:
        """Return a page of the specifications by name, and the token of the next page."""
        specs = self.all()
        return page_of(
            specs, token, page_size, name=lambda spec: spec.name, size=lambda spec: spec.ByteSize()
        )


def _plain(spec: pb.TableSpec) -> pb.TableSpec:
    """Return the specification as clients write it that predate the field `kind`."""
    if spec.kind != pb.TABLE_KIND_DENSE:
        return spec
    plain = pb.TableSpec()
    plain.CopyFrom(spec)
    plain.ClearField("kind")
    return plain


def check_spec(spec: pb.TableSpec) -> None:
    """Check a specification by itself.

    Raises:
        InvalidRequest: It is not valid.
    """
    check_name("table", spec.name)
    hashed = spec.kind == pb.TABLE_KIND_HASH
    if hashed and spec.rows:
        raise InvalidRequest(f"table {spec.name!r}: a hash table has no number of rows; leave it 0")
    if not hashed and not 0 < spec.rows <= limits.MAX_TABLE_ROWS:
        raise InvalidRequest(f"table {spec.name!r}: rows must be 1 to {limits.MAX_TABLE_ROWS}")
    if not 0 < spec.dim <= limits.MAX_TABLE_DIM:
        raise InvalidRequest(f"table {spec.name!r}: dim must be 1 to {limits.MAX_TABLE_DIM}")
    dtype = numpy_dtype(spec.dtype)
    if dtype.kind != "f" and dtype.name != "bfloat16":
        raise InvalidRequest(
            f"table {spec.name!r}: dtype must be float32, float16, bfloat16 or float64"
        )
    initializer_of(spec.initializer)
    rule, _ = rule_of(spec.optimizer)
    schedule_of(spec.schedule)
    BadGradients.of(spec.bad_gradients)
    _check_lifetime(spec, hashed, row_bytes(spec.dim, dtype, rule))


def _check_lifetime(spec: pb.TableSpec, hashed: bool, bytes_a_row: int) -> None:
    name = spec.name
    limited = spec.HasField("admission") or spec.HasField("eviction") or spec.max_bytes
    if limited and not hashed:
        raise InvalidRequest(
            f"table {name!r} is dense: admission, eviction and max_bytes are for hash tables; "
            "leave rows out"
        )
    if spec.HasField("admission"):
        Admission(spec.admission.name, dict(spec.admission.settings))
    if spec.HasField("eviction"):
        Eviction(spec.eviction.name, dict(spec.eviction.settings))
        if spec.eviction.name != "ttl" and not spec.max_bytes:
            raise InvalidRequest(
                f"table {name!r}: eviction {spec.eviction.name!r} needs max_bytes to evict at"
            )
    least = least_max_bytes(bytes_a_row)
    if spec.max_bytes and spec.max_bytes < least:
        raise InvalidRequest(
            f"table {name!r}: max_bytes is {spec.max_bytes}; it must be {least} at least, one row "
            f"of {bytes_a_row} bytes in each bucket",
            table=name,
            least=least,
        )


def _differences(held: pb.TableSpec, asked: pb.TableSpec) -> str:
    fields = [field.name for field in pb.TableSpec.DESCRIPTOR.fields]
    return "; ".join(
        f"{name} {_show(getattr(held, name))}, not {_show(getattr(asked, name))}"
        for name in fields
        if getattr(held, name) != getattr(asked, name)
    )


def _show(value: object) -> str:
    if isinstance(value, pb.Recipe):
        if not value.name:
            return "none"
        settings = ", ".join(f"{k}={value.settings[k]:g}" for k in sorted(value.settings))
        return f"{value.name}({settings})"
    return str(value)
