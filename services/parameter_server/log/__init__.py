"""The write-ahead log of a parameter server: kill -9 loses no acknowledged change.

Records in segments describe the changes of rows, in their order. A snapshot holds all tables at one
record, and replaces the segments before it.
"""

from gradmesh.services.parameter_server.log.log import Log as Log
from gradmesh.services.parameter_server.log.log import LogCorrupt as LogCorrupt
from gradmesh.services.parameter_server.log.log import Mode as Mode

__all__ = ["Log", "LogCorrupt", "Mode"]
