"""The TSO process: service, flush pipeline, compiled batch decision, leadership. Knows `core`, `wire`, `ports`; never a
database (its stores are handed in by `wiring`)."""
