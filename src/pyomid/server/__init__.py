"""The TSO as a process: sockets, flushes, leadership, start and end. It decides nothing; `pyomid.oracle` does."""
