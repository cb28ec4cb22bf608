"""How long a conflict map remembers under each eviction policy: what docs/decisions chose from.

    python -m benchmarks.tso.eviction [--slots 1000000]

lag is (now − LWM) in cells written ÷ slots, the median after the map has been filled several times over; per byte it
counts the policy's own bits too. Uniform keys never come back; zipf keys do, and a policy that forgets a hot cell
raises LWM to it and aborts everybody.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numba
import numpy as np
from benchmarks._report import machine_lines

POLICIES = ("oldest of 28", "clock of 28", "fifo of 28", "oldest of 8", "sliding window of 32")
SLOT_BYTES = (18.29, 18.29, 18.29, 18.29, 16.0)
"""512 bytes for 28 entries with their tags; a window over a flat table has no tags."""


@numba.njit(cache=True)
def lags(slots: int, policy: int, keys: Any) -> Any:
    """LWM's distance after each of 64 parts of `keys`, in keys written."""
    ways = 32 if policy == 4 else 8 if policy == 3 else 28
    buckets = slots // ways
    ids = np.full(slots + ways, -1, dtype=np.int64)
    commits = np.zeros(slots + ways, dtype=np.int64)
    used = np.zeros(slots + ways, dtype=np.uint8)
    hands = np.zeros(buckets + 1, dtype=np.int64)
    found, low_watermark, part = np.zeros(64), 0, len(keys) // 64
    for index in range(64 * part):
        key = keys[index]
        mixed = (np.uint64(key) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        place = np.int64(mixed >> np.uint64(33))
        base = place % slots if policy == 4 else place % buckets * ways
        bucket = base // ways
        slot = -1
        for way in range(ways):
            if ids[base + way] == key:
                slot = base + way
                break
        if slot < 0:
            if policy == 1:
                while used[base + hands[bucket]]:
                    used[base + hands[bucket]] = 0
                    hands[bucket] = (hands[bucket] + 1) % ways
                slot = base + hands[bucket]
                hands[bucket] = (hands[bucket] + 1) % ways
            elif policy == 2:
                slot = base + hands[bucket]
                hands[bucket] = (hands[bucket] + 1) % ways
            else:
                slot = base
                for way in range(1, ways):
                    if commits[base + way] < commits[slot]:
                        slot = base + way
            low_watermark = max(low_watermark, commits[slot])
            used[slot] = 0
        else:
            used[slot] = 1
        ids[slot], commits[slot] = key, index + 1
        if (index + 1) % part == 0:
            found[index // part] = index + 1 - low_watermark
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--slots", type=int, default=1_000_000)
    slots = parser.parse_args().slots // 224 * 224
    print("\n".join(machine_lines()))
    rng = np.random.default_rng(1)
    loads = {"uniform": np.arange(8 * slots), "zipf 1.01": rng.zipf(1.01, 8 * slots) % (1 << 40)}
    for name, keys in loads.items():
        for policy, text in enumerate(POLICIES):
            lags(2240, policy, keys[:6400])
            began = time.thread_time_ns()
            lag = float(np.median(lags(slots, policy, keys)[32:])) / slots
            spent = (time.thread_time_ns() - began) / len(keys)
            per_byte = lag / SLOT_BYTES[policy] * 16
            print(f"{name:10} {text:22} lag {lag:.3f} × slots, {per_byte:.3f} per 16 bytes, {spent:4.0f} ns/cell here")


if __name__ == "__main__":
    main()
