"""Bytes on the wire ↔ messages: `frames` cuts a stream, `requests` and `responses` translate one frame each.

`omid.proto` restates Apache Omid's messages and adds pyomid's; `make proto` regenerates `omid_pb2`.
May know `types`, `errors` and the words of `wire.messages`. Never a socket.
"""
