"""Switches a running machine to the compiled oracle, between two of its steps."""

from __future__ import annotations

import threading

from pyomid.oracle.machine import TsoMachine
from pyomid.oracle.native.compiled_oracle import CompiledOracle
from pyomid.oracle.native.conflict_map import CacheLineMap, populate


def switch_to_native(machine: TsoMachine, *, chunk_bytes_max: int, wait_for_memory: bool = False) -> CompiledOracle:
    """Return the machine's compiled oracle, ready to decide. Call it on the machine's own thread.

    The conflict map's memory is faulted in during the first decisions, or before them with `wait_for_memory`. Where
    fresh memory is slow (we measured 6 ms for 2 MiB in a virtual machine), decisions are slow until then.
    """
    compiled = CompiledOracle(machine, chunk_bytes_max=chunk_bytes_max)
    memory = threading.Thread(target=populate, args=(compiled.map_words,), daemon=True)
    try:
        memory.start()
    except RuntimeError:  # the system refuses another thread
        populate(compiled.map_words)
    else:
        if wait_for_memory:
            memory.join()
    return compiled


def ready_map(entries_max: int) -> CacheLineMap:
    """Return an empty map with its memory faulted in, which is the slow part of the switch."""
    made = CacheLineMap(entries_max)
    populate(made.words)
    return made
