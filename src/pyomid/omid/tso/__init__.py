"""The TSO as a process: sockets, flushes, leadership, startup and shutdown. `oracle` makes all decisions."""
