"""How long a client may use a table's rules that it read: the rules of a table that was dropped and made anew, perhaps
with another conflict level, must not decide which ids a commit names (T9).

Between the two lives of a name lies a fence (protocol.md, Catalog, 3). With each start a TSO tells the newest fence
that it has drawn on any table, and its epoch; all fences of earlier TSOs lie below that. The client keeps with the
rules a start that was handed out before they were read:

    fence f drawn before s was answered       after it
    read a ──► f ──► begin s, told f          read a ──► begin s, told less ──► f
               a < f: read again                         s < f: its commit aborts, on whatever TSO

If the rules were read after a start at or above the transaction's own, only the second case is possible.
"""

from __future__ import annotations

from pyomid.types import BeginReply


def may_go_by(read_after: int, begun: BeginReply) -> bool:
    """Whether a transaction may use rules that were read after the start `read_after` was handed out: either they are
    still the rules of its tables, or its commit aborts."""
    return read_after >= begun.start_ts or read_after >= max(begun.fenced_ts, begun.epoch)
