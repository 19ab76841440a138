"""Chaos: the simulator's faults on real processes, servers and wires, judged by the same checkers."""
