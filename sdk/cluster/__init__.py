"""Membership, the coordinator, the parameter servers, and the client half of a step."""
