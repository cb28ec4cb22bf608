"""The stores that implement the ports: memory, embedded (LMDB), HBase. The only package that knows a database."""
