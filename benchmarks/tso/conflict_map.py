"""The conflict map by itself: time of a commit, how long it remembers (lag), and how often hashes alone abort.

    python -m benchmarks.tso.conflict_map [--slots 16000000 100000000]

lag        (now − LWM) in commits of one cell ÷ slots, when the map has been full for long: the greater, the longer a
           transaction may run before eviction aborts it. 1.0 would be a perfect LRU over all slots.
false      two different cells with one 64-bit id: measured with ids cut to few bits, where it can be seen, against the
           birthday bound of Omid's documents: P ≈ 1 − exp(−n·m / 2^b) for a transaction of n cells that overlaps m
           other written cells, b bits.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time

import numpy as np
from benchmarks._report import machine_lines

from pyomid.omid.oracle.machine import TsoMachine
from pyomid.omid.oracle.native.memory import CacheLineMap
from pyomid.omid.oracle.settings import TsoSettings
from pyomid.omid.oracle.takeover import TakenOver
from pyomid.omid.tso.service import switch_to_native
from pyomid.types import TIMESTAMP_STEP

FILL_AT_ONCE = 100
CELLS = 10
COMMITS = 1000
ROUNDS = 60


def fill(machine: TsoMachine, writes: int) -> int:
    """As many writes of new cells, as after a long life. Returns what evictions raise the low watermark to."""
    rng, evicted = np.random.default_rng(1), 0
    for at in range(0, writes, FILL_AT_ONCE):
        ids = rng.integers(-(1 << 63), 1 << 63, FILL_AT_ONCE, dtype=np.int64)
        commit_ts = machine.state.clock.next_ts + at * TIMESTAMP_STEP
        evicted = max(evicted, machine.state.oracle.conflict_map.record_all(ids.tolist(), commit_ts))
    return evicted


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--slots", type=int, nargs="*", default=[16_000_000, 100_000_000])
    parser.add_argument("--filled", type=float, nargs="*", default=[0.1, 0.9, 3.0], help="cells written ÷ slots")
    arguments = parser.parse_args()
    print("\n".join(machine_lines()))
    base = 0.0
    for slots in arguments.slots:
        for filled in arguments.filled:
            nanoseconds, lag, size_gb = measured(slots, filled)
            base = base or nanoseconds
            remembers = f"lag {lag:.3f} × slots" if lag else "nothing evicted yet"
            print(
                f"{slots:>11,} slots ({size_gb:.2f} GB), {filled:.1f} × written: "
                f"{nanoseconds:6.0f} ns per {CELLS}-cell commit ({nanoseconds / base:.2f} × the first), {remembers}"
            )
    for bits, running in ((20, 2_000), (22, 10_000), (24, 20_000)):
        share, bound = false_aborts(bits, running)
        print(
            f"ids of {bits} bits, {running:,} cells written during a transaction: "
            f"false aborts {share:.4f}, birthday bound {bound:.4f}"
        )
    print("with all 64 bits: " + ", ".join(
        f"{cells:,} cells → {-math.expm1(-CELLS * cells / 2.0**64):.1e}" for cells in (10**6, 10**9)
    ))  # fmt: skip


def measured(slots: int, filled: float) -> tuple[float, float, float]:
    """(ns of a commit through the whole kernel, frames parsed and answered; lag; gigabytes)."""
    settings = TsoSettings(conflict_map_entries=slots, batch_entries_max=1 << 22, window_starts=4096)
    machine = TsoMachine(settings, TakenOver(TIMESTAMP_STEP, 10**15, TIMESTAMP_STEP, 0, frozenset()), now_s=0.0)
    machine.state.oracle.conflict_map = CacheLineMap(slots)
    fast = switch_to_native(machine, chunk_bytes_max=1 << 18)
    writes = int(slots * filled)
    machine.state.oracle.low_watermark = fill(machine, writes)
    lag = (
        (machine.state.clock.next_ts + writes * TIMESTAMP_STEP - machine.state.oracle.low_watermark)
        / TIMESTAMP_STEP
        / slots
    )
    machine.state.clock.next_ts += writes * TIMESTAMP_STEP
    rng = np.random.default_rng(7)
    times = []
    for _ in range(ROUNDS):
        start = machine.state.clock.next_ts
        machine.state.clock.next_ts += TIMESTAMP_STEP
        machine.state.newest_start = start
        data = commit_frames(rng, start)
        chunk = np.frombuffer(data, dtype=np.uint8)
        at, began = 0, time.thread_time_ns()
        while at < len(data):
            at = fast.decide(chunk, at, len(data), peer=0, extended=False).consumed
        times.append((time.thread_time_ns() - began) / COMMITS)
        assert machine.state.windows.open_batch.size, "nothing was committed"
    evicts = machine.state.oracle.low_watermark > machine.epoch and filled > 1
    return statistics.median(times), lag if evicts else 0.0, machine.state.oracle.conflict_map.words.nbytes / 1e9


def commit_frames(rng: np.random.Generator, start: int) -> bytearray:
    """As a Java client would send them, ids as 10-byte varints."""
    out = bytearray()
    head = b"\x08" + varint(start)
    for row in rng.integers(1 << 63, 1 << 64, (COMMITS, CELLS), dtype=np.uint64).tolist():
        ids = b"".join(varint(each) for each in row)
        commit = head + b"\x1a" + varint(len(ids)) + ids
        request = b"\x12" + varint(len(commit)) + commit
        out += len(request).to_bytes(4, "big") + request
    return out


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def false_aborts(bits: int, running: int, trials: int = 10_000) -> tuple[float, float]:
    """Transactions of `CELLS` cells against a map that holds `running` other cells; no two are truly the same cell."""
    rng = np.random.default_rng(bits)
    conflict_map = CacheLineMap(16 * running)
    for cell_id in rng.integers(0, 1 << bits, running).tolist():
        conflict_map.record(cell_id << (64 - bits), TIMESTAMP_STEP)
    aborted = 0
    for cells in rng.integers(0, 1 << bits, (trials, CELLS)).tolist():
        aborted += any(conflict_map.last_commit(cell_id << (64 - bits)) for cell_id in cells)
    return aborted / trials, -math.expm1(-CELLS * running / 2.0**bits)


if __name__ == "__main__":
    main()
