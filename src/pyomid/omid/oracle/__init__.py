"""The TSO's decisions as a pure state machine: it takes events and returns instructions.

`machine` is the reference implementation; `native` is compiled code for the most frequent requests.
"""
