"""The TSO's decisions as a pure machine: events in, instructions out.

`machine` is the reference implementation; `native` has compiled code for the requests that come most often.
"""
