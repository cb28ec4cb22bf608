"""Compiled passes over cell batches. The modules of the same names in `pyomid.protocol` say what they mean."""
