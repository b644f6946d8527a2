"""Calls between processes: servers, channels, deadlines, retries, security, figures."""
