"""The judge itself: each anomaly is found and called by its name, and what snapshot isolation permits is not one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pyomid.testing.checker import Violation, check, check_sums, check_timestamps, demand, list_value
from pyomid.testing.history import History, Item, Outcome, Read, Recorder, Scan, Transaction, Write, merged

pytestmark = pytest.mark.fast

X, Y, Z = Item("t", "x"), Item("t", "y"), Item("t", "z")
ABORTED, UNKNOWN = Outcome.ABORTED, Outcome.UNKNOWN


def txn(
    name: str,
    life: tuple[float, float],
    *operations: Read | Write | Scan,
    outcome: Outcome = Outcome.COMMITTED,
    ts: tuple[int, int | None] | None = None,
) -> Transaction:
    """A transaction whose begin happens at life[0] and whose commit at life[1]; each call takes 0.1."""
    begin, commit = life
    return Transaction(
        name,
        begin,
        begin + 0.1,
        list(operations),
        commit,
        None if outcome is UNKNOWN else commit + 0.1,
        outcome,
        *(ts or (None, None)),
    )


def names(*transactions: Transaction) -> list[str]:
    return [anomaly.name for anomaly in check(History(list(transactions))).anomalies]


SETUP = txn("T0", (0, 1), Write(X, "x0"), Write(Y, "y0"))


def test_serial_history_is_clean() -> None:
    reader = txn("R", (4, 5), Read(X, "x1"), Read(Y, "y0"))
    assert names(SETUP, txn("T1", (2, 3), Read(X, "x0"), Write(X, "x1")), reader) == []


def test_aborted_read_is_found() -> None:
    """I4: nobody sees what was reported aborted."""
    writer = txn("T1", (2, 3), Write(X, "x1"), outcome=ABORTED)
    assert names(SETUP, writer, txn("R", (4, 5), Read(X, "x1"))) == ["aborted read"]


def test_intermediate_read_is_found() -> None:
    writer = txn("T1", (2, 3), Write(X, "x1"), Write(X, "x2"))
    assert names(SETUP, writer, txn("R", (4, 5), Read(X, "x1"))) == ["intermediate read"]


def test_dirty_read_is_found() -> None:
    writer = txn("T1", (2, 9), Write(X, "x1"))
    assert names(SETUP, writer, txn("R", (3, 5), Read(X, "x1", at=4))) == ["dirty read"]


def test_read_of_a_transaction_that_never_asked_to_commit_is_dirty() -> None:
    writer = Transaction("T1", 2, 2.1, [Write(X, "x1")])
    assert names(SETUP, writer, txn("R", (3, 5), Read(X, "x1"))) == ["dirty read"]


def test_garbage_read_is_found() -> None:
    assert names(SETUP, txn("R", (4, 5), Read(X, "never written"))) == ["garbage read"]


def test_non_repeatable_read_is_found() -> None:
    """I1: a snapshot read again returns the same."""
    writer = txn("T1", (3, 4), Write(X, "x1"))
    reader = txn("R", (2, 6), Read(X, "x0", at=2.5), Read(X, "x1", at=5))
    assert names(SETUP, writer, reader) == ["non-repeatable read"]


def test_own_write_must_be_seen() -> None:
    assert names(SETUP, txn("T1", (2, 3), Write(X, "x1"), Read(X, "x0"))) == ["own write lost"]


def test_own_write_is_not_an_anomaly() -> None:
    assert names(SETUP, txn("T1", (2, 3), Read(X, "x0"), Write(X, "x1"), Read(X, "x1"))) == []


def test_lost_update_is_found() -> None:
    """I2: overlapping transactions that committed wrote no common cell."""
    one = txn("T1", (2, 4), Read(X, "x0"), Write(X, "x1"), ts=(10, 30))
    two = txn("T2", (2, 4), Read(X, "x0"), Write(X, "x2"), ts=(20, 40))
    setup = txn("T0", (0, 1), Write(X, "x0"), ts=(1, 2))
    assert names(setup, one, two) == ["lost update"]


def test_first_committer_wins_is_judged_by_real_time() -> None:
    setup = txn("T0", (0, 1), Write(X, "x0"), ts=(1, 2))
    one, two = txn("T1", (2, 4), Write(X, "x1"), ts=(10, 30)), txn("T2", (2.5, 5), Write(X, "x2"), ts=(20, 40))
    assert names(setup, one, two) == ["first-committer-wins violated"]
    assert [found.name for found in check_timestamps(History([setup, one, two]))] == ["first-committer-wins violated"]


def test_writers_one_after_the_other_are_fine() -> None:
    setup = txn("T0", (0, 1), Write(X, "x0"), ts=(1, 2))
    one, two = txn("T1", (2, 3), Write(X, "x1"), ts=(10, 20)), txn("T2", (4, 5), Write(X, "x2"), ts=(30, 40))
    assert names(setup, one, two) == []


def test_read_skew_is_found() -> None:
    writer = txn("T1", (3, 4), Write(X, "x1"), Write(Y, "y1"))
    assert names(SETUP, writer, txn("R", (2, 6), Read(X, "x0"), Read(Y, "y1", at=5))) == ["read skew"]


def test_fractured_read_is_found() -> None:
    writer = txn("T1", (3, 4), Write(X, "x1"), Write(Y, "y1"))
    assert names(SETUP, writer, txn("R", (3, 6), Read(X, "x1", at=5), Read(Y, "y0"))) == ["fractured read"]


def test_fractured_read_across_tables_is_found() -> None:
    other = Item("u", "y")
    setup = txn("T0", (0, 1), Write(X, "x0"), Write(other, "y0"))
    writer = txn("T1", (3, 4), Write(X, "x1"), Write(other, "y1"))
    assert names(setup, writer, txn("R", (3, 6), Read(X, "x1", at=5), Read(other, "y0"))) == ["fractured read"]


def test_read_skew_over_three_transactions_is_found() -> None:
    """R misses T1; T2 saw T1; R sees T2."""
    one = txn("T1", (2, 3), Write(X, "x1"))
    two = txn("T2", (3.5, 4), Read(X, "x1"), Write(Y, "y1"))
    reader = txn("R", (2, 6), Read(X, "x0"), Read(Y, "y1", at=5))
    assert names(SETUP, one, two, reader) == ["read skew"]


def test_long_fork_is_found() -> None:
    one, two = txn("T1", (2, 5), Write(X, "x1")), txn("T2", (2, 5), Write(Y, "y1"))
    left = txn("R1", (2, 9), Read(X, "x1", at=8), Read(Y, "y0"))
    right = txn("R2", (2, 9), Read(X, "x0"), Read(Y, "y1", at=8))
    assert names(SETUP, one, two, left, right) == ["long fork"]


def test_dirty_write_is_found() -> None:
    setup = txn("T0", (0, 1), Write(X, list_value([])), Write(Y, list_value([])))
    one = txn("T1", (2, 5), Write(X, list_value(["a"])), Write(Y, list_value(["b", "a"])))
    two = txn("T2", (2, 5), Write(X, list_value(["a", "b"])), Write(Y, list_value(["b"])))
    assert names(setup, one, two) == ["dirty write"]


def test_circular_information_flow_is_found() -> None:
    one = txn("T1", (2, 5), Write(X, "x1"), Read(Y, "y1"))
    two = txn("T2", (2, 5), Write(Y, "y1"), Read(X, "x1"))
    assert names(SETUP, one, two) == ["circular information flow"]


def test_stale_read_breaks_strictness() -> None:
    """I3: later snapshots see what was reported committed."""
    writer = txn("T1", (2, 3), Write(X, "x1"))
    assert names(SETUP, writer, txn("R", (4, 5), Read(X, "x0"))) == ["stale read"]


def test_a_reader_that_began_before_the_commit_may_miss_it() -> None:
    assert names(SETUP, txn("T1", (2, 4), Write(X, "x1")), txn("R", (3, 6), Read(X, "x0"))) == []


def test_snapshots_of_one_clock_never_go_back() -> None:
    """R1 began, saw T1, and only then R2 began without it."""
    writer = txn("T1", (2, 9), Write(X, "x1"))
    early = txn("R1", (3, 4), Read(X, "x1", at=9.5))
    assert names(SETUP, writer, early, txn("R2", (5, 6), Read(X, "x0"))) != []


def test_lost_append_is_found() -> None:
    setup = txn("T0", (0, 1), Write(X, list_value(["a"])))
    one = txn("T1", (2, 4), Read(X, list_value(["a"])), Write(X, list_value(["a", "b"])))
    two = txn("T2", (2, 4), Read(X, list_value(["a"])), Write(X, list_value(["a", "c"])))
    assert names(setup, one, two) == ["lost update"]


def test_unknown_commit_may_stay_unseen() -> None:
    writer = txn("T1", (2, 3), Write(X, "x1"), outcome=UNKNOWN)
    assert names(SETUP, writer, txn("R", (4, 5), Read(X, "x0"))) == []


def test_unknown_commit_once_seen_is_seen_for_ever() -> None:
    writer = txn("T1", (2, 3), Write(X, "x1"), outcome=UNKNOWN)
    first, second = txn("R1", (4, 5), Read(X, "x1")), txn("R2", (6, 7), Read(X, "x0"))
    assert names(SETUP, writer, first) == []
    assert names(SETUP, writer, first, second) == ["stale read"]


def test_an_unknown_delete_may_be_why_nothing_is_there() -> None:
    """It shows itself in absence alone, which names no writer."""
    deletes = txn("T1", (2, 3), Write(X, None), outcome=UNKNOWN)
    sees_nothing = txn("R", (4, 5), Read(X, None))
    writes_again = txn("T2", (6, 7), Read(X, None), Write(X, "x2"))
    assert names(SETUP, deletes, sees_nothing, writes_again) == []
    assert names(SETUP, sees_nothing) == ["stale read"]
    later = txn("T1", (6, 7), Write(X, None), outcome=UNKNOWN)
    assert names(SETUP, sees_nothing, later) == ["stale read"], "it had not called commit yet"


def test_unknown_commit_is_whole_or_not_at_all() -> None:
    writer = txn("T1", (2, 3), Write(X, "x1"), Write(Y, "y1"), outcome=UNKNOWN)
    assert names(SETUP, writer, txn("R", (4, 5), Read(X, "x1"), Read(Y, "y0"))) == ["fractured read"]


def test_phantom_is_found() -> None:
    """PMP: the scan misses a row of a commit of which a later read saw another row."""
    writer = txn("T1", (2, 3), Write(Y, "y1"), Write(Z, "z1"))
    reader = txn("R", (2, 6), Scan("t", "x", "y", ((X, "x0"),)), Read(Y, "y1", at=5), Read(Z, None))
    assert names(SETUP, writer, reader) == ["fractured read"]


def test_scan_that_misses_an_acknowledged_row_is_stale() -> None:
    writer = txn("T1", (2, 3), Write(Z, "z1"))
    assert names(SETUP, writer, txn("R", (4, 5), Scan("t", "a", None, ((X, "x0"), (Y, "y0"))))) == ["stale read"]


def test_deleted_row_that_comes_back_is_found() -> None:
    deleter = txn("T1", (2, 3), Write(X, None))
    assert names(SETUP, deleter, txn("R", (4, 5), Read(X, None))) == []
    assert names(SETUP, deleter, txn("R", (4, 5), Read(X, "x0"))) == ["stale read"]


def test_absence_after_delete_and_rewrite_is_placed_by_timestamps() -> None:
    history = [
        txn("T0", (0, 1), Write(X, "x0"), ts=(10, 20)),
        txn("T1", (2, 3), Write(X, None), ts=(30, 40)),
        txn("T2", (4, 5), Write(X, "x1"), ts=(50, 60)),
    ]
    assert names(*history, txn("R", (3.5, 6), Read(X, None), ts=(45, None))) == []
    assert names(*history, txn("R", (6, 7), Read(X, None), ts=(70, None))) == ["stale read"]


def test_write_skew_is_permitted_and_shown() -> None:
    one = txn("T1", (2, 4), Read(X, "x0"), Read(Y, "y0"), Write(X, "x1"))
    two = txn("T2", (2, 4), Read(X, "x0"), Read(Y, "y0"), Write(Y, "y1"))
    verdict = check(History([SETUP, one, two]))
    assert verdict.ok
    assert verdict.write_skew is not None
    assert set(verdict.write_skew.transactions) == {"T1", "T2"}


def test_read_only_anomaly_of_fekete_is_permitted_and_shown() -> None:
    """Fekete, O'Neil and O'Neil (2004): the report transaction makes a serial order impossible; SI allows it."""
    deposit = txn("T2", (2, 3), Read(Y, "y0"), Write(Y, "y20"))
    withdrawal = txn("T1", (2, 6), Read(X, "x0"), Read(Y, "y0"), Write(X, "x-11"))
    report = txn("T3", (4, 5), Read(X, "x0"), Read(Y, "y20"))
    verdict = check(History([SETUP, deposit, withdrawal, report]))
    assert verdict.ok
    assert verdict.write_skew is not None
    assert set(verdict.write_skew.transactions) == {"T1", "T2", "T3"}


def test_serializable_history_shows_no_write_skew() -> None:
    assert check(History([SETUP, txn("T1", (2, 3), Read(X, "x0"), Write(X, "x1"))])).write_skew is None


def test_timestamps_judge_each_read() -> None:
    writer = txn("T1", (2, 3), Write(X, "x1"), ts=(10, 20))
    wrong = txn("R", (2, 5), Read(X, "x1"), ts=(15, None))
    assert [found.name for found in check_timestamps(History([writer, wrong]))] == ["wrong snapshot"]
    with pytest.raises(Violation, match="wrong snapshot"):
        demand(History([writer, wrong]))


def test_reused_timestamps_are_found() -> None:
    one, two = txn("T1", (2, 3), Write(X, "x1"), ts=(10, 20)), txn("T2", (4, 5), Write(Y, "y1"), ts=(20, 30))
    assert [found.name for found in check_timestamps(History([one, two]))] == ["timestamp reused"]


def test_a_bank_keeps_its_sum() -> None:
    scan = Scan("t", "a", None, ((X, "T0:60"), (Y, "T0:40")))
    history = History([txn("R", (2, 3), scan)])
    assert check_sums(history, 100, lambda value: int(value.split(":")[1])) == []
    assert [found.name for found in check_sums(history, 101, lambda value: int(value.split(":")[1]))] == ["wrong sum"]


def _store_run(count: int, seed: int, *, forget: int | None = None) -> History:
    """A perfect snapshot-isolated store driven at random; `forget` makes one late snapshot miss a commit."""
    rng = random.Random(seed)
    versions: dict[Item, list[tuple[int, str]]] = {Item("t", f"{row:03}"): [] for row in range(200)}
    items = list(versions)
    history: list[Transaction] = []
    open_txns: list[tuple[Transaction, dict[Item, str]]] = []
    now = 0

    def tick() -> int:
        nonlocal now
        now += 1
        return now

    def finish(place: int) -> None:
        txn, writes = open_txns.pop(place)
        start = int(txn.begin_answered)
        txn.commit_called = tick()
        if any(versions[item] and versions[item][-1][0] > start for item in writes):
            txn.outcome = Outcome.ABORTED
        else:
            txn.outcome = Outcome.COMMITTED
            for item, value in writes.items():
                versions[item].append((now, value))
        txn.commit_answered = tick()
        history.append(txn)

    for number in range(count):
        txn = Transaction(f"T{number}", begin_called=tick(), begin_answered=tick())
        seen_at = int(txn.begin_answered)
        if number == forget:
            seen_at = int(history[-1].commit_called or 0) - 1
        writes: dict[Item, str] = {}
        for item in rng.sample(items, 4):
            older = [value for at, value in versions[item] if at < seen_at]
            txn.operations.append(Read(item, older[-1] if older else None, tick()))
            if rng.random() < 0.5 and number != forget:
                writes[item] = f"{txn.name}"
                txn.operations.append(Write(item, txn.name))
        if number == forget:
            for write in history[-1].writes():
                older = [value for at, value in versions[write.item] if at < seen_at]
                txn.operations.append(Read(write.item, older[-1] if older else None, tick()))
        open_txns.append((txn, writes))
        while len(open_txns) > 6:
            finish(rng.randrange(len(open_txns)))
    while open_txns:
        finish(0)
    return History(history)


def test_large_clean_history_is_judged_clean() -> None:
    assert check(_store_run(12_000, seed=1)).ok


@pytest.mark.parametrize("seed", range(20))
def test_random_clean_histories_have_no_false_alarm(seed: int) -> None:
    verdict = check(_store_run(300, seed))
    assert verdict.ok, f"seed {seed}: {verdict}"


def test_one_wrong_snapshot_in_a_large_history_is_found() -> None:
    caught = [seed for seed in range(8) if not check(_store_run(2_000, seed, forget=1_500)).ok]
    assert len(caught) >= 4, f"only seeds {caught} were caught"


def test_history_survives_the_way_through_files(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a.jsonl")
    first = recorder.begin_called("T1")
    recorder.begin_answered(first, 50)
    recorder.read(first, X, None)
    recorder.scan(first, "t", "a", None, [(Y, "y0")])
    recorder.write(first, X, "x1")
    recorder.commit_called(first)
    recorder.ended(first, Outcome.COMMITTED, 100)
    second = recorder.begin_called("T2")
    recorder.begin_answered(second, 150)
    recorder.commit_called(second)
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"name": "T3", "ti')
    read_back = merged([tmp_path / "a.jsonl"])
    assert read_back.transactions[0] == first
    assert [txn.outcome for txn in read_back.transactions] == [Outcome.COMMITTED, UNKNOWN]
