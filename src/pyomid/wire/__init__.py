"""Bytes on the wire ↔ messages: `frames` divides a stream, `codec` translates one frame, `client_protocol` is a
client's end of a connection.

`omid.proto` restates Apache Omid's messages and adds pyomid's; `make proto` regenerates `omid_pb2`.
It may import `ports`, `types` and `errors`, and uses no socket.
"""
