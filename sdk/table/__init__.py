"""Embedding tables on the parameter servers, as a client uses them."""
