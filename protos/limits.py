"""Bounds that every reader enforces before it allocates memory for what a peer claims to send."""

MAX_AXES = 8
"""Axes of one array."""

MAX_ARRAYS = 4096
"""Arrays in one message."""

MAX_FRAME_BYTES = 256 * 2**20
"""One message, unless a process is configured otherwise."""

MAX_HEAD_BYTES = 4 * 2**20
"""What a message carries beside its arrays; protobuf takes a multiple of it to hold it parsed."""

MAX_NAME_BYTES = 256
"""A table, worker, function or key name in UTF-8."""

MAX_VALUE_BYTES = 64 * 2**10
"""A value published through the coordinator."""

MAX_VALUE_DEPTH = 32
"""Nesting of lists and maps in a typed value."""

MAX_TABLE_ROWS = 2**40
"""Rows of one table in the whole cluster."""

MAX_TABLE_DIM = 2**16
"""Elements of one row."""

MAX_LINEAGE = 2**16
"""Messages with gradients in one context, as far as one process has heard of them."""
