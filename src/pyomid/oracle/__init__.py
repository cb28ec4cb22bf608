"""The TSO's decisions as a pure machine: events in, instructions out.

`machine` is the reference, `native` its compiled twin.
"""
