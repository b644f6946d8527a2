"""Version of the software, and of the contract it implements."""

VERSION = "0.1.0"
"""Version of the software; pyproject.toml reads it from here."""

PROTOCOL = "gradmesh.v1"
"""Version of the contract: two processes can talk if they have the same."""
