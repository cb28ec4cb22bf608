"""A map filled with random cells, as after a long life: for measurements."""

from __future__ import annotations

from typing import Any

import numpy as np

from pyomid.kernels.compiled import kernel
from pyomid.oracle.native.conflict_map import prefetch_commits, prefetch_tags, record_commit
from pyomid.types import TIMESTAMP_STEP


@kernel("uint64(uint64)", nogil=False)
def mixed(value: Any) -> Any:
    """A bijection of 64-bit words that looks random (the finalizer of MurmurHash3)."""
    value = (value ^ (value >> np.uint64(33))) * np.uint64(0xFF51_AFD7_ED55_8CCD)
    value = (value ^ (value >> np.uint64(33))) * np.uint64(0xC4CE_B9FE_1A85_EC53)
    return value ^ (value >> np.uint64(33))


@kernel("int64(uint64[::1], uint64, int64, int64, int64)")
def fill_map(words: Any, buckets: Any, writes: Any, first_ts: Any, seed: Any) -> Any:
    """`writes` commits of one new cell each, from `first_ts` on. Returns what evictions raised LWM to."""
    low_watermark = np.int64(0)
    for index in range(writes):
        prefetch_tags(words, buckets, mixed(np.uint64(index + 32) * np.uint64(seed)))
        prefetch_commits(words, buckets, mixed(np.uint64(index + 16) * np.uint64(seed)))
        commit_ts = np.uint64(first_ts + index * TIMESTAMP_STEP)
        evicted = np.int64(record_commit(words, buckets, mixed(np.uint64(index) * np.uint64(seed)), commit_ts))
        low_watermark = max(low_watermark, evicted)
    return low_watermark
