"""Lanes: a faster way for hot rpcs than gRPC, negotiated through it.

A lane is a few connections between one client and one server. On each, one call at a time: the
request goes out, the response comes back. Arrays travel in reused memory, so what a call receives
is borrowed and must be copied before the connection is used again.
"""
