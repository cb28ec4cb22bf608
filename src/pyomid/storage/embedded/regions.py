"""Regions of a table: ranges whose borders never move, because region watermarks are recorded per region.

Borders are chosen from samples of the table's rows: one row in 512, chosen by its hash. A row is a sample for every
writer or for none, so writing it again changes nothing. Samples of deleted rows stay; they only make a region look
larger than it is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise, takewhile
from typing import Final
from zlib import crc32

from pyomid.storage.embedded.environment import Environment, Transaction
from pyomid.storage.embedded.layout import SAMPLES
from pyomid.storage.embedded.records import VERSION_BYTES, key_row, range_bounds, version_suffix
from pyomid.storage.embedded.table_numbers import Table, Tables
from pyomid.types import KeyRange

SAMPLE_EVERY: Final = 512
SAMPLE_MASK: Final = SAMPLE_EVERY - 1
REGION_ROWS_DEFAULT: Final = 1 << 16
_REGIONS_MAX: Final = 256
"""Maximum number of regions of a table's first split."""


def is_sample(key: bytes) -> bool:
    """Whether the row of this record's key is a sample."""
    return not crc32(key[:-VERSION_BYTES]) & SAMPLE_MASK


class Regions:
    """The regions of one folder's tables. `region_rows`: a region of twice as many rows is split."""

    def __init__(self, environment: Environment, tables: Tables, region_rows: int) -> None:
        self._environment = environment
        self._tables = tables
        self._region_rows = region_rows

    def regions(self, table: str) -> list[KeyRange]:
        """Return the regions that the table's size needs. Splits a region that has grown."""

        def read(transaction: Transaction) -> tuple[list[bytes], list[bytes]]:
            current = self._tables.loaded(transaction, table)
            splits = self._tables.splits(transaction, current)
            return splits, grown_splits(splits, self._samples(transaction, current, KeyRange()), self._region_rows)

        splits, grown = self._environment.read(read)
        if grown != splits:
            splits = self._split_at(table, grown)
        return _ranges([b"", *splits, None])

    def _split_at(self, table: str, keys: Sequence[bytes]) -> list[bytes]:
        """Make a region begin at each of `keys`. Return all borders."""

        def add(transaction: Transaction) -> list[bytes]:
            current = self._tables.table(transaction, table)
            together = sorted({*self._tables.splits(transaction, current), *keys} - {b""})
            self._tables.put_splits(transaction, current, together)
            return together

        return self._environment.write(add)

    def split_points(self, table: str, key_range: KeyRange, partitions: int) -> list[bytes]:
        """Return cuts of the range at samples; a range of a few hundred rows is not cut."""

        def read(transaction: Transaction) -> list[bytes]:
            return self._samples(transaction, self._tables.loaded(transaction, table), key_range)

        return [cut for cut in cuts(self._environment.read(read), partitions) if cut > key_range.start]

    def even_parts(self, table: str, key_range: KeyRange, partitions: int) -> list[KeyRange]:
        """Split the range into up to `partitions` ranges of about equal size, in key order, independent of the
        regions."""
        return _ranges([key_range.start, *self.split_points(table, key_range, partitions), key_range.stop])

    def _samples(self, transaction: Transaction, table: Table, key_range: KeyRange) -> list[bytes]:
        """Return the rows of the range that are samples, ascending."""
        start, stop = range_bounds(table.prefix, key_range)
        with transaction.cursor(self._environment.databases[SAMPLES]) as cursor:
            if not cursor.set_range(start):
                return []
            keys = takewhile(lambda key: key < stop, cursor.iternext(values=False))
            return [key_row(key + version_suffix(0)) for key in keys]


def _ranges(borders: list[bytes | None]) -> list[KeyRange]:
    return [KeyRange(start or b"", stop) for start, stop in pairwise(borders)]


def grown_splits(splits: Sequence[bytes], samples: Sequence[bytes], region_rows: int) -> list[bytes]:
    """Return `splits`, with each region of at least twice `region_rows` split into equal parts. `samples` ascend."""
    per_region = max(region_rows // SAMPLE_EVERY, len(samples) // _REGIONS_MAX, 1)
    borders = [0, *(bisect_left(samples, split) for split in splits), len(samples)]
    grown = list(splits)
    for first, stop in pairwise(borders):
        parts = (stop - first) // per_region
        grown += [samples[first + (stop - first) * part // parts] for part in range(1, parts)]
    return sorted(set(grown) - {b""})


def cuts(samples: Sequence[bytes], partitions: int) -> list[bytes]:
    """Return up to `partitions` − 1 of the ascending samples, evenly spaced."""
    return sorted({samples[len(samples) * number // partitions] for number in range(1, partitions)}) if samples else []
