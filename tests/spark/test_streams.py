"""Both ends of a stream as Spark calls them, without a JVM: what a checkpoint names is kept, a batch counts once."""

from __future__ import annotations

import json
import pickle
import queue
import random
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

import pyomid
from pyomid.database.database import Database
from pyomid.errors import ConflictError, Misuse, SnapshotTooOld
from pyomid.spark.connections import close_connections
from pyomid.spark.source.datasource import OmidDataSource
from pyomid.spark.source.stream_reader import OmidStreamReader

pytestmark = pytest.mark.fast

ROWS = pa.schema([("name", pa.string()), ("balance", pa.int64())])


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    yield f"omid-memory:{tmp_path}"
    close_connections()


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    with pyomid.connect(url) as opened:
        make(opened, "t")
        yield opened


def make(database: Database, table: str) -> None:
    database.create_table(table, families=["d"], conflict_level="row")
    database.set_schema(table, {"name": str, "balance": int}, row_key="name")


def put(database: Database, name: str, balance: int) -> None:
    with database.begin() as tx:
        tx.table("t", codec=dict).put({"name": name, "balance": balance})


def reader(url: str, **options: str) -> OmidStreamReader:
    source = OmidDataSource({"url": url, "table": "t", "readChangeFeed": "true", **options})
    return source.streamReader(source.schema())


def batch(stream: OmidStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, str, int]]:
    rows = []
    for partition in stream.partitions(start, end):
        for part in stream.read(pickle.loads(pickle.dumps(partition))):
            rows += part.to_pylist()
    return sorted((row["name"], row["_change_type"], row["balance"]) for row in rows)


def next_batch(stream: OmidStreamReader, start: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[str, str, int]]]:
    end = json.loads(json.dumps(stream.latestOffset(start, stream.getDefaultReadLimit())))
    return end, batch(stream, start, end)


def leases(database: Database) -> tuple[int, ...]:
    return database.status().tso.leases


def test_f4_a_place_is_kept_until_the_batch_behind_it_is_done(database: Database, url: str) -> None:
    stream = reader(url)
    before = set(leases(database))
    start = stream.initialOffset()
    put(database, "alice", 1)
    end, rows = next_batch(stream, start)
    assert rows == [("alice", "insert", 1)]
    assert set(leases(database)) - before == {start["start"], end["start"]}
    stream.commit(end)
    assert set(leases(database)) - before == {end["start"]}
    stream.stop()
    assert end["start"] in leases(database), "the query may be started again"


def test_f4_no_query_ends_the_lease_of_anothers_place(database: Database, url: str) -> None:
    """Both come by the same commit."""
    one, two = (reader(url, maxRowsPerTrigger="2") for _ in range(2))
    before = set(leases(database))
    one_start, two_start = one.initialOffset(), two.initialOffset()
    for balance in range(6):
        put(database, f"k{balance}", balance)
    place, rows = next_batch(two, two_start)
    assert [name for name, *_ in rows] == ["k0", "k1"]
    next_batch(two, place)
    two.commit(place)
    places = [one_start]
    while len(places) == 1 or places[-1] != places[-2]:
        places.append(next_batch(one, places[-1])[0])
        one.commit(places[-1])
    assert place["start"] in [passed["start"] for passed in places]
    assert any(leased_ts <= place["start"] for leased_ts in set(leases(database)) - before)


def test_f4_a_query_at_its_limit_does_not_hold_w_for_ever(database: Database, url: str) -> None:
    stream = reader(url, maxRowsPerTrigger="1")
    first = start = stream.initialOffset()
    for n in range(6):
        put(database, f"a{n}", n)
        put(database, f"b{n}", n)
        start, rows = next_batch(stream, start)
        stream.commit(start)
        assert len(rows) == 1
        assert start["leased"] <= start["start"], "W stays at or below the place"
        assert start["leased"] in leases(database)
    assert start["leased"] > first["leased"]
    assert first["leased"] not in leases(database)


def test_a_callers_lease_is_the_callers_to_end(database: Database, url: str) -> None:
    mark = database.bookmark(keep_seconds=60)
    first = reader(url, startingBookmark=str(mark))
    start = first.initialOffset()
    put(database, "alice", 1)
    end, rows = next_batch(first, start)
    again = reader(url)
    assert batch(again, start, end) == rows
    again.commit(end)
    assert database._core.deployment.tso.renew_lease(mark.start_ts) >= 60


def test_f4_a_batch_that_is_planned_has_a_full_term_again(database: Database, url: str) -> None:
    stream = reader(url, numPartitions="1")
    start = stream.initialOffset()
    put(database, "alice", 1)
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    for place in (start, end):
        database.release_bookmark(place["start"])
    (part,) = stream.partitions(start, end)
    assert {start["start"], end["start"]} <= set(leases(database))
    assert part.changes.held.start_ts == start["start"]


def test_f4_each_task_of_a_batch_renews_what_it_reads_by(database: Database, url: str) -> None:
    stream = reader(url, numPartitions="1")
    start = stream.initialOffset()
    put(database, "alice", 1)
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    (part,) = stream.partitions(start, end)
    database.release_bookmark(start["start"])
    with pytest.raises(SnapshotTooOld, match="has no lease"):
        list(stream.read(part))


def test_f4_the_place_of_a_query_is_renewed_while_its_batch_runs(
    database: Database, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody calls the source meanwhile."""
    stream = reader(url, bookmarkSeconds="3", numPartitions="1")
    conn = stream._connection()
    tso = conn.deployment.tso
    renewed: queue.Queue[int] = queue.Queue()
    renew = tso.renew_lease
    monkeypatch.setattr(tso, "renew_lease", lambda start_ts: (renewed.put(start_ts), renew(start_ts))[1])
    start = stream.initialOffset()
    put(database, "alice", 1)
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    stream.partitions(start, end)
    wanted = {start["leased"], end["leased"]}
    assert wanted <= {lease.start_ts for lease in conn.leases._live()}
    while wanted:
        wanted.discard(renewed.get(timeout=60))


def test_a_batch_that_is_read_again_tells_the_same_times(
    database: Database, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = reader(url)
    start = stream.initialOffset()
    put(database, "alice", 1)
    end = json.loads(json.dumps(stream.latestOffset(start, stream.getDefaultReadLimit())))
    first = [part for p in stream.partitions(start, end) for part in stream.read(p)]
    later = time.time() + 100
    monkeypatch.setattr(time, "time", lambda: later)
    again = reader(url)
    assert first == [part for p in again.partitions(start, end) for part in again.read(p)]
    assert first[0].num_rows == 1


def test_f5_a_batch_of_a_table_that_was_made_anew_is_refused(database: Database, url: str) -> None:
    stream = reader(url, numPartitions="1")
    start = stream.initialOffset()
    put(database, "alice", 1)
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    (part,) = stream.partitions(start, end)
    database.drop_table("t")
    make(database, "t")
    with pytest.raises(SnapshotTooOld, match="the table was dropped"):
        list(stream.read(part))


def test_a_query_started_again_reads_the_same_batch_and_goes_on(database: Database, url: str) -> None:
    first = reader(url)
    start = first.initialOffset()
    put(database, "alice", 1)
    end, rows = next_batch(first, start)
    put(database, "alice", 2)
    again = reader(url)
    assert batch(again, start, end) == rows == [("alice", "insert", 1)]
    later, rows = next_batch(again, end)
    assert rows == [("alice", "update_postimage", 2), ("alice", "update_preimage", 1)]
    again.commit(later)
    assert end["start"] not in leases(database), "what an earlier run leased ends too"


@pytest.mark.parametrize("options", [{}, {"maxRowsPerTrigger": "1"}], ids=["all", "limited"])
def test_the_first_batch_is_handed_out_again_from_where_it_began(
    database: Database, url: str, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    """Spark keeps no note of that, and asks each time: where a query begins that names no place has moved since."""
    monkeypatch.setattr("pyomid.spark.source.stream_reader.POLL_S", 0.0)
    first = reader(url, **options)
    start = first.initialOffset()
    put(database, "alice", 1)
    end, rows = next_batch(first, start)
    assert json.loads(json.dumps(first.latestOffset(end, first.getDefaultReadLimit()))) == end, "nothing is new"
    put(database, "bob", 2)
    assert first.initialOffset() == start, "in one run too"
    for _ in range(2):
        again = reader(url, **options)
        assert batch(again, again.initialOffset(), end) == rows == [("alice", "insert", 1)]
    again.commit(end)
    later, rows = next_batch(again, end)
    assert rows == [("bob", "insert", 2)]
    assert "began" not in later


def test_a_limited_batch_ends_at_a_commit(database: Database, url: str) -> None:
    stream = reader(url, maxRowsPerTrigger="2")
    start = stream.initialOffset()
    for balance in range(4):
        put(database, "alice", balance)
    with database.begin() as tx:
        for name in "xyz":
            tx.table("t", codec=dict).put({"name": name, "balance": 0})
    stream.prepareForTriggerAvailableNow()
    put(database, "alice", 9)
    sizes = []
    while True:
        end, rows = next_batch(stream, start)
        if end == start:
            break
        sizes.append(len(rows))
        stream.commit(end)
        start = end
    assert sizes == [1, 2, 2, 2, 3]


def test_a_backlog_is_counted_once(database: Database, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each of its batches would look through all of it."""
    counts = []
    place_with = OmidStreamReader._place_with

    def counted(self: OmidStreamReader, *given: Any) -> Any:
        counts.append(given)
        return place_with(self, *given)

    monkeypatch.setattr(OmidStreamReader, "_place_with", counted)
    stream = reader(url, maxRowsPerTrigger="2")
    end = stream.initialOffset()
    for number in range(7):
        put(database, f"k{number}", number)
    told = []
    for _ in range(4):
        end, rows = next_batch(stream, end)
        told.append([name for name, *_ in rows])
        put(database, f"late{len(told)}", 0)
    assert told == [["k0", "k1"], ["k2", "k3"], ["k4", "k5"], ["k6"]]
    assert len(counts) == 1
    end, rows = next_batch(stream, end)
    assert [name for name, *_ in rows] == ["late1", "late2"]
    assert len(counts) == 2
    again = reader(url, maxRowsPerTrigger="2")
    again.prepareForTriggerAvailableNow()
    assert [name for name, *_ in next_batch(again, end)[1]] == ["late3", "late4"]


def test_a_query_s_lag_is_what_lies_behind_its_batch(database: Database, url: str) -> None:
    stream = reader(url, maxRowsPerTrigger="2")
    assert stream.reportLatestOffset() is None
    end = stream.initialOffset()
    for number in range(5):
        put(database, f"k{number}", number)
    lags = []
    while not lags or lags[-1][1]:
        end, _ = next_batch(stream, end)
        newest = stream.reportLatestOffset()
        assert newest is not None
        assert newest["time"].startswith("20")
        lags.append((newest["start"] > end["start"], newest["rowsBehind"]))
    assert lags == [(True, 3), (True, 1), (False, 0)]
    stream._next_check_s, stream._moved_s = 0.0, float("inf")  # it moved just now
    assert stream.latestOffset(end, stream.getDefaultReadLimit()) == end
    newest = stream.reportLatestOffset()
    assert newest is not None
    assert (newest["start"], newest["rowsBehind"]) == (end["start"], 0), "an idle table has no lag"


def test_a_stream_that_finds_nothing_stays_where_it_is(database: Database, url: str) -> None:
    stream = reader(url)
    start = stream.initialOffset()
    stream._moved_s = float("inf")  # it moved just now
    assert stream.latestOffset(start, stream.getDefaultReadLimit()) == start
    stream._next_check_s, stream._moved_s = 0.0, float("-inf")  # long ago
    assert stream.latestOffset(start, stream.getDefaultReadLimit())["start"] > start["start"]


def test_a_stream_whose_looks_take_long_says_nothing_is_new(
    database: Database, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A move of its place is a batch, though an empty one: where each look ended in one, `processAllAvailable` would
    wait for ever."""
    monkeypatch.setattr("pyomid.spark.source.stream_reader.POLL_S", 0.0)
    monkeypatch.setattr("pyomid.spark.source.stream_reader.REST_S_MAX", 0.0)
    stream = reader(url)
    places = [stream.initialOffset()]
    put(database, "alice", 1)
    for _ in range(5):
        places.append(stream.latestOffset(places[-1], stream.getDefaultReadLimit()))
    assert [one == other for one, other in pairwise(places)] == [False, True, False, True, False]


def test_what_committed_before_spark_asked_is_told(
    database: Database, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only after the pause between two looks: `processAllAvailable` ends where nothing is new."""
    monkeypatch.setattr("pyomid.spark.source.stream_reader.POLL_S", 0.05)
    stream = reader(url)
    end = stream.initialOffset()
    for name in ("alice", "bob"):
        put(database, name, 1)
        end, rows = next_batch(stream, end)
        assert rows == [(name, "insert", 1)]


def test_a_query_whose_column_was_widened_says_to_start_it_again(database: Database, url: str) -> None:
    """And goes on where it was, with the new type."""
    with database.begin() as tx:
        tx.table("t", codec=dict).put({"name": "alice", "balance": 1})
    database.alter_columns("t", add={"note": "integer"})
    stream, narrow = reader(url), reader(url, columns="name,balance")
    start = stream.initialOffset()
    database.alter_columns("t", widen={"note": int}, rename={"balance": "sum"})
    with database.begin() as tx:
        tx.table("t", codec=dict).put({"name": "alice", "sum": 2, "note": 1 << 40})
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    with pytest.raises(Misuse, match=r"'note' was widened from integer to long while the query ran.*Load the stream"):
        stream.partitions(start, end)
    assert batch(narrow, start, end) == [("alice", "update_postimage", 2), ("alice", "update_preimage", 1)]
    again = reader(url)
    (part,) = [part.to_pylist() for each in again.partitions(start, end) for part in again.read(each)]
    assert [row["note"] for row in part] == [None, 1 << 40]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"table": "other"}, "belongs to table 'other'"),
        ({"database": "00"}, "belongs to a database other than"),
        ({"generation": 1}, "was dropped and created again"),
        ({"more": 1}, "not an offset of a stream"),
    ],
)
def test_a_checkpoint_of_another_stream_is_refused(
    database: Database, url: str, changed: dict[str, Any], says: str
) -> None:
    stream = reader(url)
    start = stream.initialOffset()
    with pytest.raises(Misuse, match=says):
        stream.latestOffset({**start, **changed}, stream.getDefaultReadLimit())
    with pytest.raises(Misuse, match=says):
        stream.partitions(start, {**start, **changed})


def test_a_query_that_was_away_too_long_is_told(database: Database, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = reader(url)
    start = stream.initialOffset()
    put(database, "alice", 1)
    end, _ = next_batch(stream, start)
    leader_state = stream._connection().deployment.leader_state
    monkeypatch.setattr(leader_state, "read_watermarks", lambda: (start["start"] + 50, 0))
    with pytest.raises(SnapshotTooOld, match="no longer kept"):
        batch(stream, start, end)


class Query:
    """One checkpoint as Spark keeps it: the ends of batches, noted before they run, and how many are done. Each `run`
    goes as far as it comes, from another process's point of view."""

    def __init__(self, url: str, starting: str) -> None:
        self.url, self.starting = url, starting
        self.noted: list[str] = []
        self.done = 0
        self.told: list[list[tuple[str, str, int]]] = []

    def run(self, rng: random.Random, steps: int, write: Callable[[], None], *, dies: float = 0.15) -> None:
        options = {} if rng.random() < 0.5 else {"maxRowsPerTrigger": str(rng.randint(1, 3))}
        begins = {"startingBookmark": self.starting} if not self.noted else {}
        stream = reader(self.url, **options, **begins)
        for _ in range(steps):
            if rng.random() < 0.5:
                write()
            start = json.loads(self.noted[self.done - 1]) if self.done else stream.initialOffset()
            if len(self.noted) == self.done:
                limit = stream.getDefaultReadLimit()
                end = json.dumps(stream.latestOffset(start, limit))
                if self.noted and end == self.noted[-1]:
                    continue
                self.noted.append(end)
                if rng.random() < dies:
                    return
            rows = batch(stream, start, json.loads(self.noted[self.done]))
            if len(self.told) > self.done:
                assert self.told.pop() == rows, "the same again"
            self.told.append(rows)
            if rng.random() < dies:
                return
            self.done += 1
            if rng.random() < dies:
                return
            stream.commit(json.loads(self.noted[self.done - 1]))


@pytest.mark.parametrize("seed", range(12))
def test_a_query_that_dies_anywhere_tells_each_change_once(
    database: Database, url: str, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """With a limit or none, another one each time; that it names a place where it begins is forgotten."""
    monkeypatch.setattr("pyomid.spark.source.stream_reader.POLL_S", 0.0)
    monkeypatch.setattr("pyomid.spark.source.stream_reader.LOOK_SHARE", 0)
    monkeypatch.setattr("pyomid.spark.source.stream_reader.REST_S_MAX", 0.0)
    rng, balances_now, expected = random.Random(seed), dict[str, int](), list[tuple[str, str, int]]()
    put(database, "alice", 0)
    balances_now["alice"] = 0
    mark = database.bookmark(keep_seconds=60)

    def write() -> None:
        with database.begin() as tx:
            for name in rng.sample(["alice", "bob", "cleo"], rng.randint(1, 2)):
                before, after = balances_now.get(name), rng.randint(1, 1 << 40)
                tx.table("t", codec=dict).put({"name": name, "balance": after})
                balances_now[name] = after
                known = [] if before is None else [(name, "update_preimage", before)]
                expected.extend([*known, (name, "insert" if before is None else "update_postimage", after)])

    query = Query(url, str(mark))
    for _ in range(5):
        query.run(rng, rng.randint(1, 6), write)
    query.run(rng, 60, lambda: None, dies=0.0)
    assert sorted(row for rows in query.told for row in rows) == sorted(expected)


# ---------------------------------------------------------------- writing


def written(url: str, names: list[str], *, balance: int = 0, query_id: str = "q", table: str = "t") -> Any:
    """A batch as Spark performs it, before its commit: a writer for the tasks, another one to commit."""
    source = pickle.loads(pickle.dumps(OmidDataSource({"url": url, "table": table, "rowKey": "name"})))
    struct = StructType().add("name", "string").add("balance", "long")
    rows = pa.RecordBatch.from_pylist([{"name": name, "balance": balance} for name in names], schema=ROWS)
    writer = pickle.loads(pickle.dumps(source.streamWriter(struct, False)))
    message = writer.write(iter([rows]))
    assert message.query_id is None, "no query runs here"
    message.query_id = query_id
    return source.streamWriter(struct, False), [pickle.loads(pickle.dumps(message))]


def write(url: str, number: int, names: list[str], **how: Any) -> Any:
    committer, messages = written(url, names, balance=number, **how)
    committer.commit(messages, number)
    return committer, messages


def balances(database: Database, table: str = "t") -> dict[str, int]:
    with database.snapshot() as tx:
        return {row["name"]: row["balance"] for row in tx.table(table, codec=dict).scan()}


def test_a_batch_that_is_handed_out_again_counts_once(database: Database, url: str) -> None:
    write(url, 0, ["a", "b"])
    put(database, "a", 7)
    write(url, 0, ["a", "b"])
    assert balances(database) == {"a": 7, "b": 0}
    write(url, 1, ["b"])
    write(url, 0, ["c"], query_id="another query")
    assert balances(database) == {"a": 7, "b": 1, "c": 0}
    assert leases(database) == ()


def test_a_batch_behind_the_newest_is_not_skipped_in_silence(database: Database, url: str) -> None:
    """Its checkpoint was put back: Spark numbers other rows as that batch."""
    write(url, 0, ["a"])
    write(url, 1, ["b"])
    write(url, 1, ["b"])
    with pytest.raises(Misuse, match="batches 0 and 1 of the streaming query q have committed already"):
        write(url, 0, ["a", "c"])
    assert balances(database) == {"a": 0, "b": 1}


def test_one_checkpoint_for_two_tables_counts_for_each(database: Database, url: str) -> None:
    make(database, "u")
    write(url, 0, ["a"])
    write(url, 0, ["a"], table="u")
    assert balances(database) == balances(database, "u") == {"a": 0}


@pytest.mark.parametrize("table", ["u", "u" * 200], ids=["short name", "long name"])
def test_a_batch_counts_once_for_each_life_of_its_table(database: Database, url: str, table: str) -> None:
    """The new table has not what the dropped one had; a batch that is handed out again is written to it, once."""
    for balance in (1, 2):
        make(database, table)
        write(url, 0, ["a"], table=table)
        with database.begin() as tx:
            tx.table(table, codec=dict).put({"name": "a", "balance": balance})
        write(url, 0, ["a", "b"], table=table)
        assert balances(database, table) == {"a": balance}
        database.drop_table(table)
    write(url, 0, ["c"], table=table)
    assert balances(database, table) == {"c": 0}, "it makes the table itself"


def test_a_batch_whose_table_is_made_anew_amid_it_is_refused(database: Database, url: str) -> None:
    """Delivered again it is the new table's."""
    committer, messages = written(url, ["a"])
    database.drop_table("t")
    make(database, "t")
    with pytest.raises(ConflictError, match="created again"):
        committer.commit(messages, 0)
    committer.abort(messages, 0)
    assert balances(database) == {}
    assert leases(database) == ()
    write(url, 0, ["a"])
    assert balances(database) == {"a": 0}


def test_an_abort_behind_the_commit_undoes_nothing(database: Database, url: str) -> None:
    committer, messages = write(url, 0, ["a"])
    committer.abort(messages, 0)
    assert balances(database) == {"a": 0}


def test_of_two_drivers_of_one_batch_one_counts(database: Database, url: str) -> None:
    for committer, messages in [written(url, ["a"], balance=balance) for balance in (1, 2)]:
        committer.commit(messages, 0)
    assert balances(database) == {"a": 1}


def test_a_sink_without_a_url_is_refused() -> None:
    with pytest.raises(Misuse, match="option url is missing: omid:///folder or omid"):
        OmidDataSource({"table": "t", "rowKey": "name"}).streamWriter(StructType().add("name", "string"), False)
