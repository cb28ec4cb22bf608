"""The stand-in for numpy gives numpy's results, of all that the light installation uses of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyomid import plain_arrays

pytestmark = pytest.mark.fast

Work = Callable[[Any, Any, Any], Any]
"""Of numpy or its stand-in, the elements a, the elements b (as many; of small numbers), an array."""


def filled(m: Any, into: Any, key: Any, value: Any) -> Any:
    into[key] = value
    return into


WORKS: dict[str, Work] = {
    "arithmetic": lambda m, a, b: ((a + b) * 3 - a) // 7 % 5,
    "comparison": lambda m, a, b: ((a > b) & (a != 0)) | ~(b <= 2) & (a == b) | (a >= 90) & (a < 99),
    "bits": lambda m, a, b: ((a ^ b) >> 2) & 0xFF,
    "slice": lambda m, a, b: a[1:-1],
    "mask": lambda m, a, b: a[b > 2],
    "indices": lambda m, a, b: a[m.flatnonzero(b)],
    "set slice": lambda m, a, b: filled(m, a.copy(), slice(0, None), b),
    "set mask": lambda m, a, b: filled(m, a.copy(), b > 2, 0),
    "set indices": lambda m, a, b: filled(m, a.copy(), m.flatnonzero(b), 7),
    "set through a view": lambda m, a, b: filled(m, rows(m, a, b), (slice(None), 1), 3),
    "set column range": lambda m, a, b: filled(m, rows(m, a, b), (slice(None), slice(0, 1)), 3),
    "set pairs": lambda m, a, b: filled(m, rows(m, a, b), (m.arange(len(a)), m.minimum(b, 1)), a),
    "set of rows": lambda m, a, b: filled(m, rows(m, a, b), slice(0, len(a) // 2), rows(m, b, a)[: len(a) // 2]),
    "set of rows chosen": lambda m, a, b: filled(m, rows(m, a, b), (m.flatnonzero(b), 0), 5),
    "rows": lambda m, a, b: rows(m, a, b),
    "reversed rows": lambda m, a, b: rows(m, a, b)[::-1],
    "column": lambda m, a, b: rows(m, a, b)[:, 1],
    "column range": lambda m, a, b: rows(m, a, b)[:, 1:],
    "rows by mask": lambda m, a, b: rows(m, a, b)[b > 2],
    "pairs": lambda m, a, b: rows(m, a, b)[m.arange(len(a)), m.minimum(b, 1)],
    "flat": lambda m, a, b: rows(m, a, b).reshape(-1),
    "any by row": lambda m, a, b: rows(m, a, b).any(axis=1),
    "nonzero": lambda m, a, b: list(m.nonzero(rows(m, a, b))),
    "list of pairs": lambda m, a, b: m.array([*zip(a.tolist(), b.tolist(), strict=True)], dtype=m.int64).reshape(-1, 2),
    "narrow": lambda m, a, b: a.astype(m.int32),
    "whether": lambda m, a, b: (b > 1).astype(m.int64),
    "bytes": lambda m, a, b: m.frombuffer(a.tobytes(), dtype="<i8"),
    "part of bytes": lambda m, a, b: m.frombuffer(a.tobytes(), dtype=m.uint8, count=4 * len(a), offset=2 * len(a)),
    "joined": lambda m, a, b: m.concatenate(([0], a, b[:1])),
    "joined rows": lambda m, a, b: m.concatenate([rows(m, a, b), rows(m, b, a)]),
    "sums": lambda m, a, b: m.cumsum(a, dtype=m.int64),
    "differences": lambda m, a, b: m.diff(a),
    "repeated": lambda m, a, b: m.repeat(a, b),
    "appended": lambda m, a, b: m.append(a, 4),
    "inserted": lambda m, a, b: m.insert(m.sort(a), m.searchsorted(m.sort(a), m.sort(b)), m.sort(b)),
    "found": lambda m, a, b: m.searchsorted(m.sort(b), a, side="right"),
    "found in column": lambda m, a, b: m.searchsorted(m.sort(rows(m, b, a)[:, 0]), [1, 5]),
    "unique": lambda m, a, b: m.unique(b),
    "unique, first": lambda m, a, b: list(m.unique(b, return_index=True)),
    "unique, inverse": lambda m, a, b: list(m.unique(b, return_inverse=True)),
    "unique, counted": lambda m, a, b: list(m.unique(b, return_index=True, return_counts=True)),
    "unique rows": lambda m, a, b: m.unique(m.concatenate([m.column_stack([a, b]), rows(m, a, b)[:, ::-1]]), axis=0),
    "sums by place": lambda m, a, b: m.add.reduceat(a, m.flatnonzero(m.concatenate([[True], a[1:] != a[:-1]]))),
    "among": lambda m, a, b: m.isin(a, b.tolist()),
    "union": lambda m, a, b: m.union1d(a, b),
    "difference of sets": lambda m, a, b: m.setdiff1d(m.unique(a), b, assume_unique=True),
    "chosen of two": lambda m, a, b: m.where(b > 2, a, 0),
    "at least": lambda m, a, b: m.maximum(a, 3),
    "order": lambda m, a, b: m.argsort(b, kind="stable"),
    "order by two": lambda m, a, b: m.lexsort((a, b)),
    "numbers": lambda m, a, b: m.arange(-1, 4, dtype=m.int32),
    "one number": lambda m, a, b: m.full_like(a, 9),
    "summary": lambda m, a, b: [int(a.sum()), int(a.max(initial=0)), m.count_nonzero(b), bool(m.any(b > 2)), a.nbytes],
    "scalars": lambda m, a, b: [int(a[-1]), int(a.min()), bool((a > 0).all()), int(m.searchsorted(m.sort(a), 3))],
}


def rows(m: Any, a: Any, b: Any) -> Any:
    return m.stack([a, b], axis=1)


def plain(result: Any) -> Any:
    return [plain(each) for each in result] if isinstance(result, list) else getattr(result, "tolist", lambda: result)()


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, (1 << 31) - 1), st.integers(0, 4)), min_size=1, max_size=6))
def test_the_stand_in_gives_numpys_results(pairs: list[tuple[int, int]]) -> None:
    def results(m: Any) -> dict[str, Any]:
        a, b = (m.array([pair[side] for pair in pairs], dtype=m.int64) for side in (0, 1))
        return {name: plain(work(m, a, b)) for name, work in WORKS.items()}

    assert results(plain_arrays) == results(np)


def test_columns_and_slices_are_views() -> None:
    words = plain_arrays.zeros((3, 2), dtype=plain_arrays.int64)
    words[:, 1][1:] = 5
    words[0][0] = 4
    assert words.tolist() == [[4, 0], [0, 5], [0, 5]]
