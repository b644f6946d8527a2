"""What a parameter server writes down, so that kill -9 loses nothing that was acknowledged.

Records in segments say what changed rows, in the order in which it did; a snapshot holds all tables
at one record, and the segments before it are removed.
"""

from gradmesh.services.parameter_server.log.log import Log as Log
from gradmesh.services.parameter_server.log.log import LogCorrupt as LogCorrupt
from gradmesh.services.parameter_server.log.log import Mode as Mode

__all__ = ["Log", "LogCorrupt", "Mode"]
