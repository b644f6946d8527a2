"""Version of the software, and of the contract it speaks."""

VERSION = "0.1.0"
"""Of the software; pyproject.toml reads it from here."""

PROTOCOL = "gradmesh.v1"
"""Of the contract: two processes talk when it is the same on both."""
