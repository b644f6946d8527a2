from gradmesh.protos.coordinator.v1 import data_pb2 as _data_pb2
from gradmesh.protos.coordinator.v1 import membership_pb2 as _membership_pb2
from gradmesh.protos.coordinator.v1 import rendezvous_pb2 as _rendezvous_pb2
from gradmesh.protos.coordinator.v1 import reshard_pb2 as _reshard_pb2
from gradmesh.protos.coordinator.v1 import status_pb2 as _status_pb2
from gradmesh.protos.coordinator.v1 import table_pb2 as _table_pb2
from gradmesh.protos.coordinator.v1 import ticket_pb2 as _ticket_pb2
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor
