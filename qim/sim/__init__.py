"""The simulator: one seed is one whole world of production machines over faked services (docs/simulator.md)."""
