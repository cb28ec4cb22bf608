"""A scan's batches, resolved in groups: where commit entries are a round trip away, several batches share one.

A look-up costs a batch as much as its decoding, and the reader waits for it. So the first batch that has starts which
nobody here knows is resolved by itself, the next ones two and three at a time; they are read ahead for it. Batches
that explain themselves, by shadow cells or by what is in the cache, go through one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from pyomid.cells import CellBatch
from pyomid.client.drivers import Driver
from pyomid.client.parts import Parts
from pyomid.core.commit_cache import CommitCache
from pyomid.core.reading import Snapshot, learn_commits_steps, resolve_batch_steps, unknown_starts
from pyomid.ports import LooksUpAtOnce

GROUP_MAX: Final = 3
"""What a scan holds in memory besides the batch in use: two more."""


def resolved_groups(
    parts: Parts, driver: Driver, table: str, batches: Iterable[CellBatch], snapshot: Snapshot, cache: CommitCache
) -> Iterator[list[CellBatch]]:
    """The batches in their order, each as `resolve_batch_steps` returns it. All columns were fetched.

    The caller runs `check_snapshot_steps` after each group it took visible cells from, or after the last.
    """
    group_max = GROUP_MAX if isinstance(parts.commit_table, LooksUpAtOnce) else 1
    left = iter(batches)
    size = 1
    for batch in left:
        group = [batch]
        if group_max > 1 and unknown_starts(group, snapshot, cache):
            group += islice(left, size - 1)
            size = min(size + 1, group_max)
            if len(group) > 1:
                driver.run(learn_commits_steps(group, snapshot, cache))
        yield [driver.run(resolve_batch_steps(table, each, None, snapshot, cache)) for each in group]
