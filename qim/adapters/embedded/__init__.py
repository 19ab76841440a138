"""Embedded parts: SQLite log and registry, a private Valkey; nothing to set up."""
