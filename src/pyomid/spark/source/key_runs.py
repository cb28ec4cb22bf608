"""The rows of one task by ascending key, as far as memory goes: what a B-tree takes cheaply.

Batches come in the frame's order. Each sorted by itself, ten thousand keys from all over the table touch nearly every
page of it, and so does the next batch. Of one run of all rows two thousand neighbours touch a few dozen pages.
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
"""In the environment of Spark's Python processes (`spark.executorEnv`): another run than this. 0: each batch alone."""

RUN_BYTES: Final = 48 << 20
"""What a task holds of a frame until it is written, about: of the flights half a million rows."""


def in_runs(encoder: RowEncoder, batches: Iterable[pa.RecordBatch], batch_rows: int) -> Iterator[pa.RecordBatch]:
    """The rows of all batches in batches of up to `batch_rows`, ascending by key in runs. Of rows with one key the
    later stays behind the earlier."""
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
    told = os.environ.get(RUN_VARIABLE, "")
    if told and not told.isdecimal():
        raise Misuse(f"{RUN_VARIABLE}={told!r} is not a number of bytes, as 50000000", value=told)
    return int(told) if told else RUN_BYTES


def _run(encoder: RowEncoder, held: list[pa.RecordBatch], batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Takes what is held."""
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
