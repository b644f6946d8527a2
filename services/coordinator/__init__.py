"""The coordinator: members, ranks, tables and progress of a cluster."""
