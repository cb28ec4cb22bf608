"""Compiled passes over cell batches; the modules of the same names in `pyomid.protocol` define them."""
