"""Byte streams of clients: qim/1 over TCP."""
