"""A running machine goes over to the compiled oracle, between two of its steps."""

from __future__ import annotations

import threading

from pyomid.oracle.machine import TsoMachine
from pyomid.oracle.native.compiled_oracle import CompiledOracle
from pyomid.oracle.native.conflict_map import CacheLineMap
from pyomid.oracle.native.decide import decide_frames
from pyomid.oracle.native.intrinsics import populate
from pyomid.server.native.socket_loop import load_kernels


def switch_to_native(machine: TsoMachine, *, chunk_bytes_max: int, wait_for_memory: bool = False) -> CompiledOracle:
    """The machine's compiled oracle, ready to decide. In the machine's own thread.

    The memory of the conflict map is taken from the system during the first decisions, or before them with
    `wait_for_memory`: where fresh memory is slow (6 ms for 2 MiB were measured in a virtual machine), decisions are
    slow until the map has it.
    """
    decide_frames.compiled()
    compiled = CompiledOracle(machine, chunk_bytes_max=chunk_bytes_max)
    memory = threading.Thread(target=populate, args=(compiled.map_words,), daemon=True)
    try:
        memory.start()
    except RuntimeError:  # no thread is to be had
        populate(compiled.map_words)
    else:
        if wait_for_memory:
            memory.join()
    return compiled


def ready_map(entries_max: int) -> CacheLineMap:
    """An empty map with its memory taken, and the kernels loaded that work on it: all of the switch that takes long."""
    load_kernels()
    made = CacheLineMap(entries_max)
    populate(made.words)
    return made
