"""Compiled loops between Arrow columns and cell batches; `tests/row_codec_reference.py` says what each does."""
