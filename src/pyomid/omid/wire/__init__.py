"""Bytes on the wire ↔ messages: `frames` splits a stream, `codec` translates one frame, `client_protocol` is the
client's end of a connection.

`omid.proto` restates Apache Omid's messages and adds pyomid's; `make proto` regenerates `omid_pb2`. The package may
import `ports`, `types` and `errors`, and uses no socket.
"""
