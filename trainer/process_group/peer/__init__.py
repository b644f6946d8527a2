"""Connections of a rank to its peers: rendezvous, handshake, links, and exchanges over them."""
