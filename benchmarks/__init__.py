"""Benchmarks against the peer: same work, same run, ratios. Run by `gradmesh bench`."""
