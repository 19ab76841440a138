"""Real servers on free loopback ports, started by the tests, stopped by pid (issue: production test bed)."""
