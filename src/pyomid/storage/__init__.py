"""The stores behind the ports: memory, embedded (LMDB), HBase. The only package that knows a database."""
