"""Which roles may call which rpc, where a cluster distinguishes them.

A role is what a token or a certificate stands for; `admin` may call everything. A test checks that
every rpc stands here, and calls each of them as every role.
"""

ADMIN = "admin"
READER = "reader"

ROLES = ("parameter-server", "trainer", "worker", "client", READER, ADMIN)
"""`client` reads and writes tables from outside; `reader` only reads rows and what there is."""

_SERVER, _TRAINER, _WORKER, _CLIENT = ROLES[:4]

_ADMIN = frozenset({ADMIN})
_TRAINERS = _ADMIN | {_TRAINER}
_SERVERS = _ADMIN | {_SERVER}
_MEMBERS = _ADMIN | {_SERVER, _TRAINER, _WORKER, _CLIENT}
_EVERYBODY = _MEMBERS | {READER}

_BY_SERVICE: dict[str, dict[frozenset[str], tuple[str, ...]]] = {
    "autograd.v1.AutogradService": {
        _MEMBERS: ("SendGradients", "ReportParts", "AbortPass", "ProbePass", "StepParameters"),
    },
    "coordinator.v1.CoordinatorService": {
        _EVERYBODY: ("DescribeTable", "ListTables", "GetShardMap", "GetReshard", "GetStatus"),
        _MEMBERS: (
            "Register",
            "RenewLease",
            "Leave",
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
        # What goes over a lane or a stream is checked there, call by call.
        _EVERYBODY: ("Describe", "OpenLane", "Exchange"),
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
        # A reader's lookups have no context, and make no rows.
        _EVERYBODY: ("Lookup", "InspectTable"),
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
"""As what a caller of each role but the admin may become a member."""
