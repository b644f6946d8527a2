"""Clusters as containers on one engine: `gradmesh up --on docker`."""
