"""Names, addresses and reports are checked where they arrive: bad ones change nothing."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from gradmesh.engine.optim import SGD
from gradmesh.protos.autograd.v1 import autograd_pb2
from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.coordinator.v1 import coordinator_pb2, membership_pb2
from gradmesh.protos.errors import InvalidRequest, LimitExceeded, MeshError
from gradmesh.protos.frame import Frame
from gradmesh.protos.limits import MAX_ENTRIES, MAX_ERROR_BYTES
from gradmesh.protos.method import Method, methods_of
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2
from gradmesh.protos.texts import REPORTS, check_texts
from gradmesh.protos.version import PROTOCOL
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.server import Server
from tests.security.hostile import ADDRESSES, NAMES, TEXT

SERVICES = [
    next(iter(module.DESCRIPTOR.services_by_name.values()))
    for module in (autograd_pb2, coordinator_pb2, owner_pb2, parameter_server_pb2)
]
COLD = [
    m for s in SERVICES for m in methods_of(s).values() if not m.number and m.name != "Exchange"
]
_COORDINATOR = coordinator_pb2.DESCRIPTOR.services_by_name["CoordinatorService"]


def text_fields(kind: Descriptor, path: tuple[FieldDescriptor, ...] = ()) -> Iterator[Any]:
    """Yield the way to each text field of a message, those of nested messages included."""
    for field in kind.fields:
        if field.type == FieldDescriptor.TYPE_STRING:
            yield (*path, field)
        elif field.message_type is not None and field not in path:
            yield from text_fields(field.message_type, (*path, field))


def filled(kind: type[Message], path: tuple[FieldDescriptor, ...], text: str) -> Message:
    """Return a message with a text in one of its fields."""
    message = kind()
    target: Any = message
    for field in path[:-1]:
        if field.message_type.GetOptions().map_entry:
            key, value = field.message_type.fields
            number = value.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_INT64)
            entries = getattr(target, field.name)
            if path[-1] is key:
                entries[text] = 1 if number else "x"
            else:
                entries["x"] = text
            return message
        held = getattr(target, field.name)
        target = held.add() if field.is_repeated else held
    last = path[-1]
    if last.is_repeated:
        getattr(target, last.name).append(text)
    else:
        setattr(target, last.name, text)
    return message


CASES = [(method, path) for method in COLD for path in text_fields(method.request_type.DESCRIPTOR)]


class Anything:
    """Serves every rpc, and counts the calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __getattr__(self, verb: str) -> Callable[[Any, Any], Any]:
        def serve(request: Any, call: Any) -> Any:
            self.calls += 1
            raise MeshError("reached")

        return serve


def request_of(method: Method, message: Message) -> Any:
    return Frame(message, []) if method.bulk[0] else message


def test_no_rpc_accepts_a_text_that_its_field_may_not_have() -> None:
    """Each text field of each rpc, over a real connection: none reaches the servicer."""
    anything = Anything()
    server = Server(dict.fromkeys(SERVICES, anything), listen="127.0.0.1:0")
    server.start()
    accepted = []
    try:
        with Channel(server.address, "x", lane="unary") as channel:
            for method, path in CASES:
                is_report = path[-1].full_name.removeprefix("gradmesh.") in REPORTS
                text = "x" * (MAX_ERROR_BYTES + 1) if is_report else TEXT
                request = request_of(method, filled(method.request_type, path, text))
                try:
                    channel.call(method, request, Deadline.after(20))
                except (InvalidRequest, LimitExceeded):
                    continue
                except MeshError:
                    accepted.append(path[-1].full_name)
    finally:
        server.drain(0)

    assert accepted == []
    assert anything.calls == 0
    assert len(CASES) > 40


def test_a_list_with_too_many_texts_is_refused() -> None:
    request = membership_pb2.RenewLeaseRequest(name="a", incarnation=1)
    for _ in range(MAX_ENTRIES + 1):
        request.context_openers.add()

    with pytest.raises(LimitExceeded, match=f"the limit is {MAX_ENTRIES}"):
        check_texts(request)


def register(channel: Channel, name: str, address: str) -> None:
    member = membership_pb2.Member(
        name=name, address=address, role=membership_pb2.ROLE_WORKER, incarnation=7
    )
    request = membership_pb2.RegisterRequest(member=member, protocol=PROTOCOL, replace=True)
    channel.call(methods_of(_COORDINATOR)["Register"], request, Deadline.after(20))


@pytest.mark.parametrize(
    ("name", "address"),
    [*[(name, "127.0.0.1:1") for name in NAMES], *[("worker-7", bad) for bad in ADDRESSES]],
    ids=repr,
)
def test_no_member_has_a_hostile_name_or_address(cluster: Any, name: str, address: str) -> None:
    before = cluster.coordinator.machine.members.leases()

    with Channel(cluster.address, "coordinator") as channel, pytest.raises(InvalidRequest):
        register(channel, name, address)

    assert [m.member for m in cluster.coordinator.machine.members.leases()] == [
        m.member for m in before
    ]


@pytest.mark.parametrize("lane", ["unary", "stream", "tcp", "shm"])
@pytest.mark.parametrize("name", ["a\x1b[31mb", "a\nb", "[/x]"])
def test_a_hostile_name_in_a_hot_call_is_not_stored(cluster: Any, lane: Any, name: str) -> None:
    """A server reports the openers of its contexts to the coordinator, which would refuse them."""
    mesh = cluster.connect()
    mesh.table("users", rows=10, dim=2, optimizer=SGD(lr=0.1))
    service = parameter_server_pb2.DESCRIPTOR.services_by_name["ParameterServerService"]
    methods, store = methods_of(service), cluster.stores[0]
    context = context_pb2.ContextId(worker=name, incarnation=1, counter=1)
    epoch = mesh.connection.servers.shard_map(mesh.connection.deadline()).epoch
    lookup = parameter_server_pb2.LookupRequest(
        context=context, lookup=1, tables=["users"], shard_epoch=epoch
    )
    push = parameter_server_pb2.PushRequest(
        worker=name, incarnation=1, sequence=1, shard_epoch=epoch
    )

    with Channel(cluster.servers[0].server.address, "ps-0", lane=lane) as channel:
        for method, message, arrays in (
            ("Lookup", lookup, [np.empty(0, np.int64)]),
            ("Push", push, []),
        ):
            with pytest.raises(InvalidRequest, match="is not a name for a worker"):
                channel.call(methods[method], Frame(message, arrays), Deadline.after(20))

    assert store.contexts.openers() == {}


def test_a_restore_cannot_set_more_steps_than_kernels_can_count(cluster: Any) -> None:
    """The next push would end with an internal error, as `make fuzz` found."""
    mesh = cluster.connect()
    table = mesh.table("users", dim=2, optimizer=SGD(lr=0.1))
    service = parameter_server_pb2.DESCRIPTOR.services_by_name["ParameterServerService"]
    methods = methods_of(service)
    begin = parameter_server_pb2.BeginRestoreRequest(restore="r", tables=["users"])
    end = parameter_server_pb2.EndRestoreRequest(restore="r", steps=[2**63])

    with Channel(cluster.servers[0].server.address, "ps-0", lane="unary") as channel:
        channel.call(methods["BeginRestore"], begin, Deadline.after(60))
        with pytest.raises(InvalidRequest, match="a run has 281474976710656 at most"):
            channel.call(methods["EndRestore"], end, Deadline.after(60))
        end.steps[0] = 5
        channel.call(methods["EndRestore"], end, Deadline.after(60))
    table.push([1], np.ones((1, 2), np.float32))
