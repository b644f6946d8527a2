"""Tables in files: checkpoints of all tables, exports and imports of one."""
