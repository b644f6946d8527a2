"""How a process speaks to the mesh: channels, retries, tables, contexts."""
