"""A node of the mesh, client and server at once: every process but the coordinator."""
