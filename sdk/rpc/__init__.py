"""Calls between the processes of a mesh: functions by name, typed values, futures."""
