"""Compiled code of the wire protocol (decision 0112). The protobuf runtime is the reference implementation."""
