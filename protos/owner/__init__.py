"""The contract of the service of every process."""
