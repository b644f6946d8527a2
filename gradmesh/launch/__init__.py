"""Start the processes of a cluster and keep them alive: here, in containers, on Kubernetes.

A `Launcher` (launcher.py) is what the command line knows; there is one for each place.
`Supervisor` knows nothing of gradmesh's roles: it runs the commands it is given. `LocalCluster`
gives it those of a coordinator, parameter servers and trainers.
"""

from gradmesh.launch.child import ChildSpec as ChildSpec
from gradmesh.launch.errors import ClusterFailed as ClusterFailed
from gradmesh.launch.errors import NoCluster as NoCluster
from gradmesh.launch.errors import StateInUse as StateInUse
from gradmesh.launch.local import LocalCluster as LocalCluster
from gradmesh.launch.policy import RestartPolicy as RestartPolicy
from gradmesh.launch.state import StateFolder as StateFolder
from gradmesh.launch.supervisor import Outcome as Outcome
from gradmesh.launch.supervisor import Supervisor as Supervisor

__all__ = [
    "ChildSpec",
    "ClusterFailed",
    "LocalCluster",
    "NoCluster",
    "Outcome",
    "RestartPolicy",
    "StateFolder",
    "StateInUse",
    "Supervisor",
]
