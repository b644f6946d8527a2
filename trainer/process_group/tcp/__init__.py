"""The tcp backend: a full mesh of sockets between the ranks."""

from gradmesh.trainer.process_group.tcp.group import TcpProcessGroup as TcpProcessGroup
from gradmesh.trainer.process_group.tcp.rendezvous import Endpoint as Endpoint

__all__ = ["Endpoint", "TcpProcessGroup"]
