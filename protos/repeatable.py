"""Which rpcs may be sent again when nobody knows whether the first one arrived.

A repeatable rpc has the same effect once or twice: it only reads, or the server remembers what it
has done by an id that the caller chose. A test checks that every rpc stands here.
"""

REPEATABLE: dict[str, bool] = {
    "gradmesh.autograd.v1.AutogradService/SendGradients": True,
    "gradmesh.autograd.v1.AutogradService/ReportParts": True,
    "gradmesh.autograd.v1.AutogradService/AbortPass": True,
    "gradmesh.autograd.v1.AutogradService/ProbePass": True,
    "gradmesh.coordinator.v1.CoordinatorService/Register": True,
    "gradmesh.coordinator.v1.CoordinatorService/RenewLease": True,
    "gradmesh.coordinator.v1.CoordinatorService/Leave": True,
    "gradmesh.coordinator.v1.CoordinatorService/JoinRound": True,
    "gradmesh.coordinator.v1.CoordinatorService/PutKey": True,
    "gradmesh.coordinator.v1.CoordinatorService/GetKey": True,
    "gradmesh.coordinator.v1.CoordinatorService/CreateTable": True,
    "gradmesh.coordinator.v1.CoordinatorService/DescribeTable": True,
    "gradmesh.coordinator.v1.CoordinatorService/ListTables": True,
    "gradmesh.coordinator.v1.CoordinatorService/GetShardMap": True,
    "gradmesh.coordinator.v1.CoordinatorService/ReportProgress": True,
    "gradmesh.coordinator.v1.CoordinatorService/ReportResult": True,
    "gradmesh.coordinator.v1.CoordinatorService/GetStatus": True,
    "gradmesh.owner.v1.OwnerService/Describe": True,
    # A registered function may do anything; only its author knows whether twice is once.
    "gradmesh.owner.v1.OwnerService/Call": False,
    "gradmesh.owner.v1.OwnerService/CreateRef": True,
    "gradmesh.owner.v1.OwnerService/FetchRef": True,
    "gradmesh.owner.v1.OwnerService/DeleteRef": True,
    "gradmesh.owner.v1.OwnerService/ReleaseContext": True,
    "gradmesh.owner.v1.OwnerService/OpenLane": True,
    "gradmesh.parameter_server.v1.ParameterServerService/StartRun": True,
    "gradmesh.parameter_server.v1.ParameterServerService/InspectRun": True,
    "gradmesh.parameter_server.v1.ParameterServerService/Lookup": True,
    "gradmesh.parameter_server.v1.ParameterServerService/Refresh": True,
    "gradmesh.parameter_server.v1.ParameterServerService/Backward": True,
    "gradmesh.parameter_server.v1.ParameterServerService/Apply": True,
    "gradmesh.parameter_server.v1.ParameterServerService/CommitStep": True,
    "gradmesh.parameter_server.v1.ParameterServerService/Push": True,
    "gradmesh.parameter_server.v1.ParameterServerService/InspectTable": True,
    "gradmesh.parameter_server.v1.ParameterServerService/BeginSnapshot": True,
    "gradmesh.parameter_server.v1.ParameterServerService/ReadSnapshot": True,
    "gradmesh.parameter_server.v1.ParameterServerService/EndSnapshot": True,
    "gradmesh.parameter_server.v1.ParameterServerService/BeginRestore": True,
    "gradmesh.parameter_server.v1.ParameterServerService/LoadRows": True,
    "gradmesh.parameter_server.v1.ParameterServerService/EndRestore": True,
}
