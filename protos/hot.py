"""Which rpcs may leave gRPC for a lane, and their numbers there.

A lane exists for calls that are so short or so big that gRPC's own cost shows. Numbers are part of
the contract: never reuse one.
"""

HOT: dict[str, int] = {
    "gradmesh.parameter_server.v1.ParameterServerService/Lookup": 1,
    "gradmesh.parameter_server.v1.ParameterServerService/Backward": 2,
    "gradmesh.parameter_server.v1.ParameterServerService/Apply": 3,
    "gradmesh.parameter_server.v1.ParameterServerService/Push": 4,
    "gradmesh.owner.v1.OwnerService/Call": 5,
    "gradmesh.owner.v1.OwnerService/CreateRef": 6,
    "gradmesh.owner.v1.OwnerService/FetchRef": 7,
    "gradmesh.owner.v1.OwnerService/DescribeRef": 8,
    "gradmesh.owner.v1.OwnerService/ForkRef": 9,
    "gradmesh.owner.v1.OwnerService/AcceptFork": 10,
    "gradmesh.owner.v1.OwnerService/DeleteRef": 11,
    "gradmesh.owner.v1.OwnerService/Deliver": 12,
    "gradmesh.autograd.v1.AutogradService/SendGradients": 16,
    "gradmesh.autograd.v1.AutogradService/ReportParts": 17,
    "gradmesh.owner.v1.OwnerService/ReleaseContext": 18,
    "gradmesh.autograd.v1.AutogradService/StepParameters": 19,
    "gradmesh.parameter_server.v1.ParameterServerService/Refresh": 20,
}
