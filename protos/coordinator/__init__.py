"""The contract of the coordinator's service."""
