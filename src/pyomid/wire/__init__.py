"""Bytes on the wire ↔ messages. May know `types` and `errors`. Never a socket."""
