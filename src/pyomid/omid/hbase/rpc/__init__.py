"""HBase's native RPC: connections, frames and calls."""
