"""How long a table's rules, read once, may be gone by: those of a table that was dropped and made anew, perhaps with
another conflict level, must not decide which ids a commit names (T9).

Between the two lives of a name lies a fence (protocol.md, Catalog, 3). A TSO tells with each start the newest fence
that it has drawn on any table, and its epoch, below which all fences of earlier TSOs lie. Rules are kept with a start
that was handed out before they were read:

    fence f drawn before s was answered       after it
    read a ──► f ──► begin s, told f          read a ──► begin s, told less ──► f
               a < f: read again                         s < f: its commit aborts, on whatever TSO

If they were read after a start at or above the transaction's own, the second case is the only one.
"""

from __future__ import annotations

from pyomid.types import BeginReply


def may_go_by(read_after: int, begun: BeginReply) -> bool:
    """Whether a transaction may go by rules that were read after the start `read_after` was handed out: they are its
    tables', or its commit aborts."""
    return read_after >= begun.start_ts or read_after >= max(begun.fenced_ts, begun.epoch)
