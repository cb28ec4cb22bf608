"""Existing HBase tables become transactional: every cell without a shadow cell counts as committed at its own version.

    check_adoptable   the families keep all versions
    adopt_range       one region, or any part of one: shadow cells beside all cells (idempotent, in any number of tasks)
    then the catalogue entry, and only then transactions

Whoever wrote the table without transactions must have stopped. A cell that is newer than the TSO's timestamps would
be invisible to everybody, so it is refused: HBase's own clock counts milliseconds, a TSO in world-time mode is above
them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pyomid.errors import Misuse
from pyomid.storage.hbase.store import HBaseStore
from pyomid.types import KeyRange


def check_adoptable(store: HBaseStore, table: str, families: Sequence[bytes]) -> None:
    """`Misuse` that says what to alter; `UnknownTable` where there is no such table."""
    store.check_table(table, families)


def adopt_range(store: HBaseStore, table: str, key_range: KeyRange, newest_ts: int) -> int:
    """Durable on return: every cell of the range has its shadow cell. Returns how many records were given one.

    `newest_ts`: a start timestamp of the TSO, drawn after the last writer stopped.
    """
    adopted = 0
    nothing = np.array([], dtype=np.int64)
    for batch in store.scan(table, key_range):
        bare = np.flatnonzero(batch.rec_commit == 0)
        if not len(bare):
            continue
        newest = int(batch.rec_version[bare].max())
        if newest >= newest_ts:
            raise Misuse(
                f"table {table} holds a cell of version {newest}, newer than the TSO's timestamp {newest_ts}: no "
                "transaction would see it; run the TSO with --timestamps world-time, or adopt a copy",
                version=newest,
            )
        batch.rec_commit[bare] = batch.rec_version[bare]
        store.clean_batch(table, batch, bare, nothing)
        adopted += len(bare)
    return adopted
