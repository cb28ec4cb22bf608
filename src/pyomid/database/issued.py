"""Bounds of the timestamps that the TSO has handed out."""

from __future__ import annotations

from pyomid.ports import Deployment
from pyomid.types import TIMESTAMP_STEP


def drawn_start(deployment: Deployment) -> int:
    """Return a unique timestamp above every acknowledged commit. As a generation, it distinguishes a new table from a
    dropped table, of which a compactor may still hold records (K5). As part of a name, it makes the name unique."""
    return deployment.tso.draw()


def last_issued(deployment: Deployment) -> int:
    """Return an upper bound of every timestamp in the store. A new start is not such a bound: while a batch is flushed,
    its commits can already be read, and begins get starts from the window below these commits
    (`omid/oracle/begins.py`). Apache Omid's TSO has no windows, so its newest start is above all timestamps."""
    if not deployment.tso.extended:
        return drawn_start(deployment)
    return deployment.tso.status().last_ts + TIMESTAMP_STEP
