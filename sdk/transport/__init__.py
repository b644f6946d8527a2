"""Calls between processes: servers, channels, lanes, deadlines, retries, security, metrics."""
