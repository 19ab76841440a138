"""`qim serve`: one role a process, over real servers (architecture.md, Embedded and production)."""
