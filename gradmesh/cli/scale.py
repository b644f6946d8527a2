"""`gradmesh scale parameter-servers|trainers`."""

import time

import click

from gradmesh.cli.cluster_options import with_launcher, with_mesh
from gradmesh.cli.display import RowBar
from gradmesh.cli.output import echo
from gradmesh.launch.launcher import Launcher
from gradmesh.protos.coordinator.v1 import reshard_pb2
from gradmesh.protos.errors import ReshardAborted
from gradmesh.protos.sharding import BUCKETS
from gradmesh.sdk.cluster import scaling
from gradmesh.sdk.mesh.mesh import Mesh

_LONG_S = 3600.0


@click.group()
def scale() -> None:
    """Change the number of a cluster's processes during a run."""


@scale.command("trainers")
@click.argument("count", type=click.IntRange(min=0))
@with_launcher
def trainers(launcher: Launcher, count: int) -> int:
    """Run the job with COUNT trainers, in a cluster started with `gradmesh up`."""
    launcher.scale("trainer", count)
    echo(f"{count} trainers")
    return 0


@scale.command("parameter-servers")
@click.argument("count", type=int)
@click.option(
    "--wait-s",
    type=click.FloatRange(min=0.1),
    default=60.0,
    help="Seconds to wait for servers to be added.  [default: 60]",
)
@with_mesh(_LONG_S, with_processes=True)
def parameter_servers(
    mesh: Mesh, timeout_s: float, launcher: Launcher | None, count: int, wait_s: float
) -> int:
    """Reshard the tables to COUNT parameter servers while training continues.

    In a cluster started with `gradmesh up` the command also starts and ends servers. With
    --coordinator, start the new ones yourself; those without buckets exit. After Ctrl-C the reshard
    continues without this command.
    """
    connection = mesh.connection
    before = len(connection.servers.refresh(connection.deadline()).names)
    begun = time.monotonic()
    try:
        with RowBar("moving", "buckets") as bar:

            def watch(reshard: reshard_pb2.Reshard) -> None:
                # Only once the coordinator has accepted the reshard.
                if launcher is not None and reshard.phase == reshard_pb2.RESHARD_PHASE_WAITING:
                    launcher.scale("parameter-server", count)
                bar(reshard.buckets_moved, reshard.buckets)

            done = scaling.scale(connection, count, wait_s=wait_s, watch=watch, timeout_s=timeout_s)
    except ReshardAborted:
        if launcher is not None:
            launcher.scale("parameter-server", before)
        raise
    except KeyboardInterrupt:
        echo("the reshard continues; run the same command again to follow it", err=True)
        raise
    if launcher is not None:
        launcher.scale("parameter-server", count)
    step = f", after step {done.step}" if done.HasField("step") else ""
    echo(
        f"{count} parameter servers: {done.buckets} of {BUCKETS} buckets moved{step}, in "
        f"{time.monotonic() - begun:.1f} s"
    )
    return 0
