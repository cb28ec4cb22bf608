"""Upkeep as a service: which regions are due, and who goes on."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest
from upkeep_parts import failing_merges, publish

from pyomid.cli import main
from pyomid.cli.upkeep import ending
from pyomid.database.database import Database
from pyomid.database.upkeep.service import CompactionRounds, SanitizingRounds, Stopped, serve
from pyomid.errors import Misuse, Unavailable
from pyomid.types import KeyRange

pytestmark = pytest.mark.fast

EVERY_S = 1000.0


class Hand:
    """A clock that is moved by hand."""

    now_s = 50_000.0

    def __call__(self) -> float:
        return self.now_s


class Turn:
    """One that is always free. After `rounds` looks at it another process has it."""

    def __init__(self, rounds: int = 1 << 30) -> None:
        self.looks, self.rounds = 0, rounds
        self.released = 0

    def acquire(self, stop: threading.Event) -> bool:
        self.looks = 0
        return not stop.is_set()

    def is_held(self) -> bool:
        self.looks += 1
        return self.looks <= self.rounds

    def release(self) -> None:
        self.released += 1


def rounds_of(db: Database, hand: Hand, **options: object) -> CompactionRounds:
    return CompactionRounds(lambda: db, EVERY_S, threading.Event(), lambda: True, wall_clock=hand, **options)  # type: ignore[arg-type]


def records(db: Database, table: str) -> list[int]:
    return [record.watermark for record in db._core.deployment.catalog.region_watermarks(table)]


def put(db: Database, table: str) -> None:
    with db.begin() as tx:
        tx.table(table).put(b"r", {b"f:q": b"v"})
    assert db.drain(10)


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Hand:
    """Of the service, and of the records that compaction makes."""
    made = Hand()
    monkeypatch.setattr("pyomid.database.upkeep.jobs.time.time", made)
    return made


def test_a_region_is_due_when_its_record_is_old_and_w_moved(memory_db: Database, hand: Hand) -> None:
    rounds = rounds_of(memory_db, hand)
    put(memory_db, "t")
    publish(memory_db)
    rounds.round()
    (first,) = records(memory_db, "t")
    publish(memory_db)
    hand.now_s += EVERY_S / 2
    assert rounds.round() <= EVERY_S / 2
    assert records(memory_db, "t") == [first], "its record is young"
    hand.now_s += EVERY_S / 2
    rounds.round()
    second = max(records(memory_db, "t"))
    assert second > first
    hand.now_s += 2 * EVERY_S
    assert rounds.round() > 0
    assert max(records(memory_db, "t")) == second, "W did not move"


def test_a_record_of_a_clock_that_was_ahead_puts_nothing_off(memory_db: Database, hand: Hand) -> None:
    rounds = rounds_of(memory_db, hand)
    put(memory_db, "t")
    publish(memory_db)
    hand.now_s += 1e8  # three years
    rounds.round()
    (ahead,) = records(memory_db, "t")
    publish(memory_db)
    hand.now_s -= 1e8
    rounds.round()
    (right,) = memory_db._core.deployment.catalog.region_watermarks("t")
    assert right.watermark > ahead
    assert right.recorded_at_s == hand.now_s


def made(db: Database, *tables: str, **options: float) -> list[str]:
    """With something to compact in each."""
    for table in tables:
        db.create_table(table, ["f"], **options)  # type: ignore[arg-type]
        put(db, table)
    publish(db)
    return list(tables)


def round_at(rounds: CompactionRounds, *times_s: float) -> None:
    """By the clock that says when what failed is tried again."""
    for now_s in times_s:
        rounds._clock = lambda now_s=now_s: now_s  # type: ignore[misc]
        rounds.round()


def test_what_does_not_answer_comes_behind_all_others(memory_db: Database, hand: Hand) -> None:
    """One region that stays away for hours: the others are compacted meanwhile."""
    rounds = rounds_of(memory_db, hand, tables=made(memory_db, "a", "b"))
    tried, mend = failing_merges(memory_db, "a", Unavailable("the region of 'a' is in transition"))
    for _ in range(2):
        with pytest.raises(Unavailable):
            rounds.round()
    assert tried == ["a", "b", "a"]
    assert records(memory_db, "b")
    mend()
    rounds.round()
    assert records(memory_db, "a")


def test_a_named_table_that_is_gone_holds_up_no_other(
    memory_db: Database, hand: Hand, caplog: pytest.LogCaptureFixture
) -> None:
    put(memory_db, "t")
    publish(memory_db)
    rounds = rounds_of(memory_db, hand, tables=["gone", "t"])
    for _ in range(2):
        assert rounds.round() > 0
    assert records(memory_db, "t")
    assert caplog.text.count("cannot compact table 'gone'") == 1


def test_a_failing_table_holds_up_no_other(memory_db: Database, hand: Hand, caplog: pytest.LogCaptureFixture) -> None:
    """It is tried again later, and its error is logged once."""
    rounds = rounds_of(memory_db, hand, tables=made(memory_db, "a", "b"))
    tried, mend = failing_merges(memory_db, "a", Misuse("permission denied"))
    round_at(rounds, 1.0, 2.0, 100.0)
    assert tried == ["a", "b", "a"]
    assert records(memory_db, "b")
    assert caplog.text.count("compaction of table 'a' failed") == 1
    mend()
    round_at(rounds, 200.0)
    assert records(memory_db, "a")


def test_shrinking_keys_that_fails_holds_up_no_compaction(
    memory_db: Database, hand: Hand, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = list[float]()
    made(memory_db, "a")

    def fails(database: Database, keep_s: float, **_: Any) -> int:
        tried.append(hand.now_s)
        raise Misuse("permission denied")

    monkeypatch.setattr("pyomid.database.upkeep.service.expire_keys", fails)
    rounds = rounds_of(memory_db, hand)
    round_at(rounds, 1.0, 2.0, 100.0)
    assert len(tried) == 2
    assert records(memory_db, "a")
    assert caplog.text.count("permission denied") == 1


def test_a_named_table_that_is_dropped_during_compaction_holds_up_no_other(memory_db: Database, hand: Hand) -> None:
    tables = made(memory_db, "a", "b", "c")
    store = memory_db._core.deployment.store
    merge = store.flush_and_merge

    def merges(table: str, region: KeyRange) -> None:
        merge(table, region)
        if table == "a":
            memory_db.drop_table("b")

    store.flush_and_merge = merges  # type: ignore[method-assign]
    rounds_of(memory_db, hand, tables=tables).round()
    assert records(memory_db, "c")


def test_a_signal_sets_stop_although_the_interrupted_code_holds_its_lock() -> None:
    stop = threading.Event()
    handler = threading.Thread(target=ending(stop), args=(signal.SIGTERM, None), daemon=True)
    with stop._cond:  # as in `Event.wait`
        handler.start()
        handler.join(20.0)
        assert not handler.is_alive()
    assert stop.wait(20.0)
    with pytest.raises(KeyboardInterrupt):
        ending(stop)(signal.SIGTERM, None)


def test_a_service_that_is_told_to_end_ends_amid_a_region(memory_db: Database, hand: Hand) -> None:
    put(memory_db, "t")
    publish(memory_db)
    stop = threading.Event()

    def told() -> bool:
        stop.set()
        return True  # its turn it still is

    rounds = CompactionRounds(lambda: memory_db, EVERY_S, stop, told, wall_clock=hand)
    with pytest.raises(Stopped):
        rounds.round()
    assert records(memory_db, "t") == [], "what was not cleaned whole is not recorded"


def test_an_outage_ends_no_service(memory_db: Database, hand: Hand) -> None:
    """The first connection fails; so it tries again, and then its turn is over."""
    put(memory_db, "t")
    publish(memory_db)
    stop, turn, tries = threading.Event(), Turn(rounds=1), 0

    def opened() -> Database:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise Unavailable("HBase is starting")
        if tries == 3:
            stop.set()
        return Database(memory_db._core.deployment)

    serve(CompactionRounds(opened, 0.01, stop, lambda: True, wall_clock=hand), turn, stop)
    assert tries == 3
    assert turn.released == 3
    assert len(records(memory_db, "t")) == 1


def test_who_waits_after_an_error_has_no_turn() -> None:
    """What fails here alone is done by another process meanwhile."""
    turn, released = Turn(), []

    class Waits(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            released.append(turn.released)
            self.set()
            return True

    def opened() -> Database:
        raise Unavailable("no route to HBase from here")

    stop = Waits()
    serve(SanitizingRounds(opened, 1.0, stop, turn.is_held), turn, stop)
    assert released == [1]


def test_what_will_not_pass_ends_the_service() -> None:
    def opened() -> Database:
        raise Unavailable("the certificate is not trusted", may_pass=False)

    stop, turn = threading.Event(), Turn()
    with pytest.raises(Unavailable, match="not trusted"):
        serve(SanitizingRounds(opened, 1.0, stop, turn.is_held), turn, stop)
    assert turn.released == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["omid:///nowhere", "--every", "60"], "upkeepShare"),
        (["omid+hbase://zk:2181/hbase", "--every", "0"], "--every 0 is not a number of seconds above 0"),
        (["omid+hbase://zk:2181/hbase", "--every", "nan"], "--every nan"),
        (["omid+hbase://zk:2181/hbase", "--every", "5", "--json"], "omit one of them"),
    ],
)
def test_a_service_that_makes_no_sense_is_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compact", *arguments]) == 1
    assert said in capsys.readouterr().err
