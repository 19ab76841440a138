"""What an operator mends, as procedures over ports (pipeline.md §§2, 7).

A procedure is a generator: it yields a port's request, is sent its answer, and returns a report. It is as pure as a machine
and runs under any driver; qim/services/mending.py is the one of the command line. Each looks before it writes, writes only
where it was told to (``apply``), and can be run again after any stop.
"""
