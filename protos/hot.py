"""Which rpcs may leave gRPC for a lane, and their numbers there.

A lane exists for calls that are so short or so big that gRPC's own cost shows. Numbers are part of
the contract: never reuse one.
"""

HOT: dict[str, int] = {
    "gradmesh.parameter_server.v1.ParameterServerService/Lookup": 1,
    "gradmesh.parameter_server.v1.ParameterServerService/Backward": 2,
    "gradmesh.parameter_server.v1.ParameterServerService/Apply": 3,
    "gradmesh.parameter_server.v1.ParameterServerService/Push": 4,
    "gradmesh.autograd.v1.AutogradService/SendGradients": 16,
    "gradmesh.autograd.v1.AutogradService/ReportParts": 17,
}
