"""The wire protocol: `frames` splits a byte stream into frames, `codec` translates between a frame and a message, and
`client_protocol` is the client's end of a connection.

`omid.proto` restates Apache Omid's messages and adds pyomid's own; `make proto` regenerates `omid_pb2`. The package may
import `ports`, `types` and `errors`, and uses no socket.
"""
