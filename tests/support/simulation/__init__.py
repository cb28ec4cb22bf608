"""Deterministic simulation of the real core: one seed is one universe.

    build      the core, loaded from its source, with or without one rule taken out
    universe   who moves next: tasks, calls in flight, virtual time, faults; every choice by seed
    storage    the virtual disk and database: each effect is sent, takes effect in parts, is answered
    oracle     TSO processes around the core's machine; their crash loses what was not durable
    truth      what really happened, watched from outside, and the invariants I1–I7
    actors     writers, readers, long readers, large transactions, compactor, sanitiser
    runs       a safety phase with faults, then a liveness phase without, then the verdict
    mutants    which rule, taken out, turns which run red

`python -m simulation --seeds N --from S` runs many; a failing seed prints its interleaving.
"""
