"""Version of the contract: two processes talk when it is the same on both."""

PROTOCOL = "gradmesh.v1"
