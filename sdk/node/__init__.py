"""A process of the mesh that calls others and is called: every process but the coordinator."""
