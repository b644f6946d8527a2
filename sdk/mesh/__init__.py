"""The connection to a mesh that users hold: tables, checkpoints, runs and data shards."""
