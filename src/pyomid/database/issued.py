"""Bounds of the timestamps that the TSO has handed out."""

from __future__ import annotations

from pyomid.ports import Deployment
from pyomid.types import TIMESTAMP_STEP


def drawn_start(deployment: Deployment) -> int:
    """Return a timestamp above every acknowledged commit that nobody else has. As a generation it distinguishes a new
    table from a dropped one, of which a compactor may still hold records (K5); in a name it makes that unique."""
    return deployment.tso.draw()


def last_issued(deployment: Deployment) -> int:
    """Return a bound on every timestamp in the store. A new start is not such a bound: while a batch is flushed its
    commits can already be read, and begins are answered from the window of starts below them (`omid/oracle/begins.py`).
    Apache Omid's TSO has no windows: its newest start is above all."""
    if not deployment.tso.extended:
        return drawn_start(deployment)
    return deployment.tso.status().last_ts + TIMESTAMP_STEP
