"""Compiled loops between Arrow columns and cell batches; `tests/spark/row_codec_reference.py` is the reference."""
