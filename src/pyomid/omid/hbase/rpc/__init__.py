"""HBase's native RPC: connections, frames, calls."""
