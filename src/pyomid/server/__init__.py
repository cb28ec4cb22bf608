"""The TSO as a process: sockets, flushes, leadership, startup and shutdown. `pyomid.oracle` makes all decisions."""
