"""The runtime that hosts machines, and one short assembly file a service; no business rules."""
