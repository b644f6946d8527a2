"""Start the processes of a cluster and keep them alive: here, in containers, on Kubernetes.

The command line uses the interface `Launcher` (launcher.py) only; there is one launcher each for
this machine, Docker and Kubernetes. `Supervisor` is independent of gradmesh's roles: it runs the
commands it is given. `LocalCluster` gives it those of coordinator, parameter servers and trainers.
"""
