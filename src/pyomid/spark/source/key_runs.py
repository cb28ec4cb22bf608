"""The rows of one task sorted by key in runs that fit in memory, for cheap inserts into a B-tree.

Batches come in the frame's order. If each is sorted alone, its ten thousand keys from all over the table touch nearly
every page, and so do those of the next batch. In one sorted run, two thousand neighbours touch a few dozen pages.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from pyomid.errors import Misuse
from pyomid.row_codec.arrow_arrays import int64_array
from pyomid.row_codec.encode import RowEncoder

RUN_VARIABLE: Final = "PYOMID_RUN_BYTES"
"""Environment variable of Spark's Python processes (`spark.executorEnv`): the size of a run. 0: each batch alone."""

RUN_BYTES: Final = 48 << 20
"""About how many bytes of a frame a task buffers before it writes: half a million rows of the flights data."""


def in_runs(encoder: RowEncoder, batches: Iterable[pa.RecordBatch], batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all batches in batches of up to `batch_rows`, in runs of ascending keys. Rows with equal keys
    keep their order."""
    run_bytes, held = _run_bytes(), list[pa.RecordBatch]()
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= run_bytes:
            yield from _run(encoder, held, batch_rows)
            size = 0
    yield from _run(encoder, held, batch_rows)


def _run_bytes() -> int:
    text = os.environ.get(RUN_VARIABLE, "")
    if text and not text.isdecimal():
        raise Misuse(f"{RUN_VARIABLE}={text!r} is not a number of bytes, such as 50000000", value=text)
    return int(text) if text else RUN_BYTES


def _run(encoder: RowEncoder, held: list[pa.RecordBatch], batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one run, sorted; empties `held`."""
    if len(held) < 2:  # the encoder sorts each batch
        yield from held
        held.clear()
        return
    together = pa.Table.from_batches(held).combine_chunks()
    held.clear()
    for rows in together.to_batches():
        order = encoder.encode_keys(rows).order()
        for first in range(0, rows.num_rows, batch_rows):
            yield rows.take(int64_array(order[first : first + batch_rows]))
