"""A running machine takes the kernel over: its conflict map moves, each entry to the same place; nothing else does."""

from __future__ import annotations

import threading
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyomid.oracle.conflict_map import BucketMap
from pyomid.oracle.machine import TsoMachine
from pyomid.oracle.native.compiled_oracle import CompiledOracle
from pyomid.oracle.native.conflict_map import BUCKET_WORDS, COMMITS_AT, ENTRIES_AT, IDS_AT, SLOTS, CacheLineMap
from pyomid.oracle.native.decide import decide_frames
from pyomid.oracle.native.intrinsics import populate
from pyomid.server.native.socket_loop import load_kernels

_TAG: Final = np.uint64(0xFFFF)


def adopt(machine: TsoMachine, *, chunk_bytes_max: int, wait_for_memory: bool = False) -> CompiledOracle:
    """The machine's kernel, ready to decide. Between two of the machine's steps, in its own thread.

    The map's memory is taken from the system beside the first decisions, or before them with `wait_for_memory`: where
    fresh memory is dear (6 ms for 2 MiB were measured in a virtual machine), decisions crawl until the map has it.
    """
    decide_frames.compiled()
    plain = machine.oracle.conflict_map
    compiled = moved(plain) if isinstance(plain, BucketMap) else plain
    assert isinstance(compiled, CacheLineMap)
    machine.oracle.conflict_map = compiled
    memory = threading.Thread(target=populate, args=(compiled.words,), daemon=True)
    memory.start()
    if wait_for_memory:
        memory.join()
    return CompiledOracle(machine, chunk_bytes_max=chunk_bytes_max)


def ready_map(entries_max: int) -> CacheLineMap:
    """An empty map with its memory taken, and the kernels loaded that work on it: all of `adopt` that takes long."""
    load_kernels()
    made = CacheLineMap(entries_max)
    populate(made.words)
    return made


def moved(plain: BucketMap) -> CacheLineMap:
    """The same entries in the same slots of the same buckets."""
    assert plain.bucket_slots == SLOTS, "another geometry would evict other entries"
    made = CacheLineMap(plain.entries_max)
    if not plain.entries:
        return made
    if plain.entries == len(plain.first_slots):
        _place(made, plain, np.array(plain.first_slots, dtype=np.int64))
        return made
    buckets: NDArray[np.uint64] = made.words.reshape(-1, BUCKET_WORDS)
    ids = plain.ids.reshape(-1, SLOTS).view(np.uint64)
    made.words[ENTRIES_AT] = plain.entries
    buckets[:, IDS_AT : IDS_AT + SLOTS] = ids
    buckets[:, COMMITS_AT : COMMITS_AT + SLOTS] = plain.commits.reshape(-1, SLOTS).view(np.uint64)
    for slot in range(SLOTS):
        buckets[:, slot >> 2] |= (ids[:, slot] & _TAG) << np.uint64(16 * (slot & 3))
    return made


def _place(made: CacheLineMap, plain: BucketMap, slots: NDArray[np.int64]) -> None:
    """Only these slots, the rest being empty: a map of gigabytes that was just begun moves in no time."""
    made.words[ENTRIES_AT] = plain.entries
    first_words, places = slots // SLOTS * BUCKET_WORDS, slots % SLOTS
    ids = plain.ids[slots].view(np.uint64)
    made.words[first_words + IDS_AT + places] = ids
    made.words[first_words + COMMITS_AT + places] = plain.commits[slots].view(np.uint64)
    shifts = (16 * (places & 3)).astype(np.uint64)
    np.bitwise_or.at(made.words, first_words + (places >> 2), (ids & _TAG) << shifts)
