"""Futures: results of asynchronous calls."""

from gradmesh.sdk.future import Future as Future
from gradmesh.sdk.future import collect_all as collect_all
from gradmesh.sdk.future import wait_all as wait_all

__all__ = ["Future", "collect_all", "wait_all"]
