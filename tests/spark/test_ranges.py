"""Bounds of a read: what narrows what, and which moment a datetime means. Every test in a zone that is not UTC."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest

from pyomid.errors import Misuse, MisuseType
from pyomid.rows.row_key import KeyLayout, key_layout
from pyomid.spark.source.key_ranges import key_range, parse_bound
from pyomid.types import ColumnSchema, KeyRange, RowKeyPart, TableSchema

pytestmark = pytest.mark.fast

NEW_YORK = "America/New_York"


@pytest.fixture(autouse=True)
def _in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", NEW_YORK)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def layout_of(*names: str) -> KeyLayout:
    columns = tuple(ColumnSchema(f"k{index}", name, None) for index, name in enumerate(names))
    return key_layout(TableSchema(columns, tuple(RowKeyPart(column.name) for column in columns)))


# Which moment


@pytest.mark.parametrize("bound", ["start", "stop", "prefix"])
@pytest.mark.parametrize(
    ("zone", "naive", "moment"),
    [
        (NEW_YORK, datetime(2013, 1, 31, 10), datetime(2013, 1, 31, 15, tzinfo=UTC)),
        (NEW_YORK, datetime(2013, 7, 31, 10), datetime(2013, 7, 31, 14, tzinfo=UTC)),
        (NEW_YORK, datetime(2013, 11, 3, 1, 30), datetime(2013, 11, 3, 5, 30, tzinfo=UTC)),
        (NEW_YORK, datetime(2013, 11, 3, 1, 30, fold=1), datetime(2013, 11, 3, 6, 30, tzinfo=UTC)),
        ("-05:00", datetime(2013, 1, 31, 10), datetime(2013, 1, 31, 15, tzinfo=UTC)),
        ("GMT-5", datetime(2013, 1, 31, 10), datetime(2013, 1, 31, 15, tzinfo=UTC)),
    ],
)
def test_a_naive_bound_is_a_moment_of_the_sessions_zone(
    zone: str, naive: datetime, moment: datetime, bound: str
) -> None:
    layout = layout_of("timestamp", "long")
    found = key_range(layout, session_zone=zone, **{bound: [naive]})
    assert found == key_range(layout, **{bound: [moment]})


def test_a_key_that_was_collected_finds_its_own_row() -> None:
    """PySpark gives a timestamp as a datetime without a zone, in the zone of the process."""
    layout = layout_of("timestamp")
    micros = 1_359_644_400_000_000
    collected = datetime.fromtimestamp(micros / 1_000_000)
    assert key_range(layout, prefix=collected, session_zone=NEW_YORK).start == layout.encode(
        [datetime.fromtimestamp(micros / 1_000_000, UTC)]
    )


@pytest.mark.parametrize(
    ("zone", "naive", "words"),
    [
        ("UTC", datetime(2013, 1, 31, 10), "10:00:00.*in the session's zone 'UTC', but .*15:00:00.*with a tzinfo"),
        ("Asia/Tokyo", datetime(2013, 1, 31, 10), "01:00:00.*'Asia/Tokyo'.*15:00:00"),
        ("Mars/Olympus", datetime(2013, 1, 31, 10), "'Mars/Olympus'"),
        (NEW_YORK, datetime.max, "give a datetime with a tzinfo"),
        (None, datetime(2013, 1, 31, 10), "'2013-01-31T10:00:00' of column 'k0' has no time zone"),
    ],
)
def test_a_naive_bound_in_doubt_is_refused(zone: str | None, naive: datetime, words: str) -> None:
    with pytest.raises(MisuseType, match=words):
        key_range(layout_of("timestamp"), [naive], session_zone=zone)


def test_a_bound_with_a_zone_is_that_moment_in_every_session() -> None:
    layout = layout_of("timestamp")
    moment = datetime(2013, 1, 31, 10, tzinfo=timezone(timedelta(hours=2)))
    for zone in (None, "UTC", NEW_YORK):
        assert key_range(layout, [moment], session_zone=zone).start == layout.encode([moment.astimezone(UTC)])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("timestamp_ntz", datetime(2013, 1, 31, 10, tzinfo=UTC)),
        ("date", datetime(2013, 1, 31, 10)),
        ("timestamp", date(2013, 1, 31)),
        ("timestamp", "2013-01-31"),
    ],
)
def test_a_bound_of_another_kind_of_time_is_refused(kind: str, value: Any) -> None:
    with pytest.raises(MisuseType, match="'k0'"):
        key_range(layout_of(kind), [value], session_zone=NEW_YORK)


def test_an_option_names_the_zone_of_its_moment() -> None:
    layout = layout_of("timestamp")
    for text in ("2013-01-31T15:00:00Z", "2013-01-31T10:00:00-05:00"):
        assert key_range(layout, parse_bound(layout, f'["{text}"]')).start == layout.encode(
            [datetime(2013, 1, 31, 15, tzinfo=UTC)]
        )
    with pytest.raises(MisuseType, match=r"'2013-01-31T10:00:00' of column 'k0' has no time zone.*Z or an offset"):
        key_range(layout, parse_bound(layout, '["2013-01-31T10:00:00"]'))
    with pytest.raises(Misuse, match="does not fit column 'k0' of type timestamp_ntz"):
        parse_bound(layout_of("timestamp_ntz"), '["2013-01-31T10:00:00Z"]')
    naive = layout_of("timestamp_ntz")
    assert key_range(naive, parse_bound(naive, '["2013-01-31T10:00:00"]')).start == naive.encode(
        [datetime(2013, 1, 31, 10)]
    )


# What narrows what


@pytest.mark.parametrize("schema", [True, False])
def test_start_and_stop_narrow_a_prefix_and_never_widen_it(schema: bool) -> None:
    layout = layout_of("binary") if schema else None
    assert key_range(layout, b"b2", b"z", b"b") == KeyRange(b"b2", b"c")
    assert key_range(layout, b"a", b"b7", b"b") == KeyRange(b"b", b"b7")
    assert key_range(layout, None, b"z", b"b") == KeyRange(b"b", b"c")
    assert key_range(layout, b"b", None, b"") == KeyRange(b"b", None)


@pytest.mark.parametrize(("start", "stop"), [(b"c", None), (b"2", b"9"), (None, b"b"), (b"b5", b"b5")])
@pytest.mark.parametrize("schema", [True, False])
def test_bounds_that_leave_nothing_of_a_prefix_are_refused(
    schema: bool, start: bytes | None, stop: bytes | None
) -> None:
    with pytest.raises(Misuse, match="exclude every key with prefix=b'b'"):
        key_range(layout_of("binary") if schema else None, start, stop, b"b")


def test_without_a_schema_a_bound_is_bytes() -> None:
    with pytest.raises(MisuseType, match="row bound 'b' must be bytes"):
        key_range(None, "b")
