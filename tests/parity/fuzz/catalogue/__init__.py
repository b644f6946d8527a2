"""One module a family of ops; importing this package fills the registry."""

from tests.parity.fuzz.catalogue import changing as changing
from tests.parity.fuzz.catalogue import creating as creating
from tests.parity.fuzz.catalogue import indexing as indexing
from tests.parity.fuzz.catalogue import layers as layers
from tests.parity.fuzz.catalogue import losses as losses
from tests.parity.fuzz.catalogue import matrices as matrices
from tests.parity.fuzz.catalogue import pointwise as pointwise
from tests.parity.fuzz.catalogue import reading as reading
from tests.parity.fuzz.catalogue import reducing as reducing
from tests.parity.fuzz.catalogue import shaping as shaping
from tests.parity.fuzz.catalogue import tables as tables
