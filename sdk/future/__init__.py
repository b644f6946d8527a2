"""Things that are under way: their results, and whoever wants to know when they are there."""

from gradmesh.sdk.future.collect import collect_all as collect_all
from gradmesh.sdk.future.collect import wait_all as wait_all
from gradmesh.sdk.future.future import Future as Future

__all__ = ["Future", "collect_all", "wait_all"]
