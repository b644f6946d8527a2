"""Properties of every rpc beside its messages: repeatability, lane number, roles.

A repeatable rpc may be executed twice with the effect of once: it only reads, or the server dedupes
it by an id that the caller chose. A hot rpc has a lane number: it is so short or so large that the
overhead of gRPC matters. A token or certificate grants a role. Tests check that every rpc has its
rows here, and call each as every role.
"""

REPEATABLE: dict[str, bool] = {
    "gradmesh.autograd.v1.AutogradService/SendGradients": True,
    "gradmesh.autograd.v1.AutogradService/ReportParts": True,
    "gradmesh.autograd.v1.AutogradService/AbortPass": True,
    "gradmesh.autograd.v1.AutogradService/ProbePass": True,
    "gradmesh.autograd.v1.AutogradService/StepParameters": True,
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
    "gradmesh.coordinator.v1.CoordinatorService/ScaleParameterServers": True,
    "gradmesh.coordinator.v1.CoordinatorService/GetReshard": True,
    "gradmesh.coordinator.v1.CoordinatorService/ReportMove": True,
    "gradmesh.coordinator.v1.CoordinatorService/TakeShard": True,
    "gradmesh.coordinator.v1.CoordinatorService/GetDataPosition": True,
    "gradmesh.coordinator.v1.CoordinatorService/SetDataPosition": True,
    "gradmesh.coordinator.v1.CoordinatorService/ReportProgress": True,
    "gradmesh.coordinator.v1.CoordinatorService/ReportResult": True,
    "gradmesh.coordinator.v1.CoordinatorService/RequestCheckpoint": True,
    "gradmesh.coordinator.v1.CoordinatorService/ReportCheckpoint": True,
    "gradmesh.coordinator.v1.CoordinatorService/IssueTickets": True,
    "gradmesh.coordinator.v1.CoordinatorService/CheckWorkers": True,
    "gradmesh.coordinator.v1.CoordinatorService/GetStatus": True,
    "gradmesh.owner.v1.OwnerService/Describe": True,
    # A registered function may have any effect, so it may not be idempotent.
    "gradmesh.owner.v1.OwnerService/Call": False,
    "gradmesh.owner.v1.OwnerService/CreateRef": True,
    "gradmesh.owner.v1.OwnerService/FetchRef": True,
    "gradmesh.owner.v1.OwnerService/DescribeRef": True,
    "gradmesh.owner.v1.OwnerService/ForkRef": True,
    "gradmesh.owner.v1.OwnerService/AcceptFork": True,
    "gradmesh.owner.v1.OwnerService/DeleteRef": True,
    "gradmesh.owner.v1.OwnerService/Deliver": True,
    "gradmesh.owner.v1.OwnerService/CheckCalls": True,
    "gradmesh.owner.v1.OwnerService/ReleaseContext": True,
    "gradmesh.owner.v1.OwnerService/OpenLane": True,
    "gradmesh.owner.v1.OwnerService/Exchange": True,
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
    "gradmesh.parameter_server.v1.ParameterServerService/StageRows": True,
    "gradmesh.parameter_server.v1.ParameterServerService/StageMarks": True,
}
"""Whether an rpc may be sent again when it is unknown whether the first one arrived."""

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
"""Numbers of the hot rpcs on lanes. They are part of the contract: never reuse one."""

RESERVED = frozenset(
    {
        "gradmesh.coordinator.v1.CoordinatorService/Register",
        "gradmesh.coordinator.v1.CoordinatorService/RenewLease",
        "gradmesh.coordinator.v1.CoordinatorService/Leave",
        "gradmesh.owner.v1.OwnerService/Describe",
    }
)
"""The rpcs that have threads of their own: other calls cannot keep a member from its lease."""

ADMIN = "admin"
READER = "reader"

ROLES = ("parameter-server", "trainer", "worker", "client", READER, ADMIN)
"""`client` reads and writes tables without training; `reader` only reads rows and specs."""

_SERVER, _TRAINER, _WORKER, _CLIENT = ROLES[:4]

_ADMIN = frozenset({ADMIN})
_TRAINERS = _ADMIN | {_TRAINER}
_SERVERS = _ADMIN | {_SERVER}
_MEMBERS = _ADMIN | {_SERVER, _TRAINER, _WORKER, _CLIENT}
_ALL = _MEMBERS | {READER}

_BY_SERVICE: dict[str, dict[frozenset[str], tuple[str, ...]]] = {
    "autograd.v1.AutogradService": {
        _MEMBERS: ("SendGradients", "ReportParts", "AbortPass", "ProbePass", "StepParameters"),
    },
    "coordinator.v1.CoordinatorService": {
        _ALL: (
            "DescribeTable",
            "ListTables",
            "GetShardMap",
            "GetReshard",
            "GetStatus",
            "IssueTickets",
        ),
        _MEMBERS: (
            "Register",
            "RenewLease",
            "Leave",
            "CheckWorkers",
            "CreateTable",
            "TakeShard",
            "GetDataPosition",
            "SetDataPosition",
        ),
        _TRAINERS: (
            "JoinRound",
            "PutKey",
            "GetKey",
            "ReportProgress",
            "ReportResult",
            "ReportCheckpoint",
        ),
        _SERVERS: ("ReportMove",),
        _ADMIN: ("RequestCheckpoint", "ScaleParameterServers"),
    },
    "owner.v1.OwnerService": {
        # Calls on a lane are authorized one by one on arrival.
        _ALL: ("Describe", "OpenLane", "Exchange"),
        _MEMBERS: (
            "Call",
            "CreateRef",
            "FetchRef",
            "DescribeRef",
            "ForkRef",
            "AcceptFork",
            "DeleteRef",
            "Deliver",
            "CheckCalls",
            "ReleaseContext",
        ),
    },
    "parameter_server.v1.ParameterServerService": {
        # Lookups of a reader have no context, and create no rows.
        _ALL: ("Lookup", "InspectTable"),
        _MEMBERS: (
            "Refresh",
            "Backward",
            "Apply",
            "Push",
            "BeginSnapshot",
            "ReadSnapshot",
            "EndSnapshot",
            "BeginRestore",
            "LoadRows",
            "EndRestore",
        ),
        _TRAINERS: ("StartRun", "InspectRun", "CommitStep"),
        _SERVERS: ("StageRows", "StageMarks"),
    },
}

ACCESS: dict[str, frozenset[str]] = {
    f"gradmesh.{service}/{name}": roles
    for service, by_roles in _BY_SERVICE.items()
    for roles, names in by_roles.items()
    for name in names
}
"""The roles that may call an rpc, by its path without the first slash."""

MAY_REGISTER: dict[str, frozenset[str]] = {
    _SERVER: frozenset({_SERVER}),
    _TRAINER: frozenset({_TRAINER, _CLIENT}),
    _WORKER: frozenset({_WORKER, _CLIENT}),
    _CLIENT: frozenset({_CLIENT}),
    READER: frozenset(),
}
"""The member roles that a caller of each role but admin may register with."""
