"""A process's place in the mesh: membership, coordinator, parameter servers."""
