"""The long-running processes: coordinator and parameter server."""
