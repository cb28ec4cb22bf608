"""Which records of compacted regions count, and which may go, beside definitions that look at every key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyomid.protocol.sanitize import RETRY_S_MAX, Cleaned, covered_watermark, kept, superseded
from pyomid.types import KeyRange, RegionWatermark

pytestmark = pytest.mark.fast

KEYS = [b"", *(bytes([65 + number]) for number in range(6))]


@st.composite
def records(draw: st.DrawFn) -> list[RegionWatermark]:
    found = []
    for _ in range(draw(st.integers(0, 12))):
        first = draw(st.integers(0, len(KEYS) - 1))
        stop = draw(st.one_of(st.none(), st.sampled_from([*KEYS[first + 1 :], None])))
        found.append(
            RegionWatermark(
                "t", draw(st.integers(1, 2)), KeyRange(KEYS[first], stop), draw(st.integers(1, 9)),
                draw(st.sampled_from([0.0, 4000.0, 7000.0])),
            )
        )  # fmt: skip
    return found


def covered(found: list[RegionWatermark]) -> int:
    """By its definition."""
    return min(max((each.watermark for each in found if key in each.key_range), default=0) for key in KEYS)


@given(records())
def test_every_key_counts_with_its_greatest_record(found: list[RegionWatermark]) -> None:
    assert covered_watermark(found) == covered(found)


@given(records(), st.sampled_from([0.0, 60.0, RETRY_S_MAX]))
def test_what_goes_holds_no_sanitiser_back(found: list[RegionWatermark], bound_s: float) -> None:
    now_s = 8000.0
    gone = superseded(found, 1, now_s)
    counted = [each for each in found if each.generation == 1 and each.recorded_at_s <= now_s - bound_s]
    left = [each for each in counted if each.key_range not in gone]
    assert covered(left) == covered(counted)


def test_records_of_former_regions_go() -> None:
    """A table whose regions split day after day would have ever more of them."""
    found: list[RegionWatermark] = []
    for day in range(1, 50):
        at_s = day * 86400.0
        cut = b"%05d" % day
        found += [
            RegionWatermark("t", 1, KeyRange(b"", cut), day, at_s),
            RegionWatermark("t", 1, KeyRange(cut), day, at_s),
        ]
        gone = superseded(found, 1, at_s + 2 * RETRY_S_MAX)
        found = [each for each in found if each.key_range not in gone]
        assert len(found) <= 2
        assert covered_watermark(found) == day


@given(st.lists(st.floats(0.5, 500.0), min_size=1, max_size=80), st.sampled_from([1.0, 60.0, 600.0, RETRY_S_MAX]))
def test_compacting_often_lets_records_count(pauses: list[float], bound_s: float) -> None:
    """However often: what counts is at most twice as old as it must be."""
    history: list[Cleaned] = []
    every: list[Cleaned] = []
    now_s = 10_000.0
    for number, pause_s in enumerate(pauses, 1):
        now_s += pause_s
        history = kept([*history, Cleaned(now_s, number)])
        every.append(Cleaned(now_s, number))
        assert len(history) < 32
        counted = [each for each in history if each.at_s <= now_s - bound_s]
        older = [each for each in every if each.at_s <= now_s - 2 * bound_s - 500.0]
        if older:
            assert counted
            assert max(each.watermark for each in counted) >= max(each.watermark for each in older)


def test_a_record_that_reaches_no_further_changes_nothing() -> None:
    assert kept([Cleaned(5.0, 7), Cleaned(9.0, 7), Cleaned(8.0, 6)]) == [Cleaned(5.0, 7)]


def test_a_hundred_thousand_records_are_read_at_once() -> None:
    """Each region of a large table, read in one sweep; key by key it took hours."""
    keys = [b"%08d" % number for number in range(100_000)]
    found = [
        RegionWatermark("t", 1, KeyRange(start, stop), 5, 0.0)
        for start, stop in zip([b"", *keys], [*keys, None], strict=True)
    ]
    assert covered_watermark(found) == 5
    assert superseded(found, 1, 1e6) == []
