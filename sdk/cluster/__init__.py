"""The cluster as one process sees it: its membership, the coordinator, the parameter servers."""
