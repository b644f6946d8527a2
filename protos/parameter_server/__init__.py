"""The contract of the parameter server's service."""
