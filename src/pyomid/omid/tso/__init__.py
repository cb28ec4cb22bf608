"""The TSO as a process: sockets, flushes, leadership, startup and shutdown. All decisions are made by `oracle`."""
