"""A worker process of the fuzzer: serves until its standard input closes."""

import logging
import sys

from tests.integration.dist_autograd.worker import main
from tests.parity.fuzz import dist_calls

if __name__ == "__main__":
    # Failures are the caller's to report.
    logging.disable(logging.WARNING)
    assert int(sys.argv[3]) == dist_calls.WORKERS
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
