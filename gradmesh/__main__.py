"""`python -m gradmesh`: the same as the `gradmesh` command."""

import sys

from gradmesh.cli import main

if __name__ == "__main__":
    sys.exit(main())
