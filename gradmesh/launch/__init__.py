"""Start the processes of a cluster and keep them alive: here, in containers, on Kubernetes.

A `Launcher` (launcher.py) is what the command line knows; there is one for each place.
`Supervisor` knows nothing of gradmesh's roles: it runs the commands it is given. `LocalCluster`
gives it those of a coordinator, parameter servers and trainers.
"""
