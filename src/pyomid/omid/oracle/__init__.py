"""The TSO's decisions as a pure machine: events in, instructions out.

`machine` is the reference implementation; `native` is compiled code for the most frequent requests.
"""
