"""HBase's native RPC: connections, frames, calls; blocking and asyncio."""
