"""Clusters as containers of one engine; `gradmesh up --on docker`."""
