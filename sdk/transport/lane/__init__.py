"""Lanes: faster transports for hot rpcs than gRPC calls, negotiated through gRPC.

A lane is a few connections between one client and one server. Each carries one call at a time:
request, then response. Arrays are passed in reused memory, so the arrays that a call receives are
borrowed and must be copied before the connection is used again. README.md has the overview.
"""
