"""The stores behind the ports: memory, embedded (LMDB), HBase. The only room that knows a database."""
