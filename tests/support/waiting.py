"""Waits for what another thread or process is about to do, and what need not be waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from pyomid.omid.ports import LeaderState
from pyomid.ports import Catalog

WAIT_S = 60.0


def until(holds: Callable[[], object], what: str, *, wait_s: float = WAIT_S) -> None:
    """`what`: the failure, where it does not come to hold."""
    give_up_s = time.monotonic() + wait_s
    while not holds():
        assert time.monotonic() < give_up_s, what
        time.sleep(0.002)


def until_w_passes(leader_state: LeaderState, start_ts: int) -> None:
    until(lambda: leader_state.read_watermarks()[0] >= start_ts, f"W never passed {start_ts}")


def let_compactions_count(catalog: Catalog, seconds: float = 3_600) -> None:
    """As if all records of compactions were so much older: sanitizing goes by those of before any client's retries."""
    for entry in catalog.entries():
        for record in catalog.region_watermarks(entry.info.name):
            catalog.put_region_watermark(replace(record, recorded_at_s=record.recorded_at_s - seconds))
