"""Checkpoints of tables and runs, and exports and imports of one table."""
