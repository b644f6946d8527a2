"""One server's shard of one table: its rows, their places and how gradients change them."""

import threading
import zlib
from typing import final

import numpy as np
from numpy.typing import NDArray

from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.dtype import numpy_dtype
from gradmesh.protos.errors import IdOutOfRange, InvalidRequest, StaleShardMap
from gradmesh.protos.frame import Array
from gradmesh.protos.sharding import ShardMap
from gradmesh.services.parameter_server.contexts import Slots
from gradmesh.services.parameter_server.recipe import Initializer, to_initializer, to_rule
