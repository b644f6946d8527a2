"""The long-running processes: coordinator, parameter server and worker."""
