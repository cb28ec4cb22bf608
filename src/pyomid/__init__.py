"""pyomid: ACID transactions (snapshot isolation) for Python and PySpark over key-value stores."""
