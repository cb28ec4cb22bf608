"""Bytes on the wire ↔ messages: `frames` divides a stream, `requests` and `responses` translate one frame each.

`omid.proto` restates Apache Omid's messages and adds pyomid's; `make proto` regenerates `omid_pb2`.
It may import `types` and `errors`, and uses no socket.
"""
