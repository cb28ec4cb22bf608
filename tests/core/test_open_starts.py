"""T16: LWM stays below what clients may still work with, and follows it; age passes all. protocol.md, Open starts."""

from __future__ import annotations

from typing import Any

import pytest
from machine_script import Script

from pyomid.omid.oracle.instructions import PeerGone
from pyomid.omid.oracle.open_starts import ENDED_MAX, OpenStarts
from pyomid.omid.wire.messages import Begin, EndLease, GrantLease, ReportOpenStarts
from pyomid.types import AbortReason, BeginReply, CommitReply, WriteSetLevel

pytestmark = pytest.mark.fast

AGE_S, INTERVAL_S = 100.0, 2.0


def script(**settings: Any) -> Script:
    return Script(max_transaction_age_s=AGE_S, open_starts_interval_s=INTERVAL_S, watermark_interval_s=0.0, **settings)


def begun(tso: Script, peer: str) -> int:
    waiting = tso.ask(Begin(), peer)
    assert isinstance(waiting.answer, BeginReply)
    return waiting.answer.start_ts


def tells(tso: Script, peer: str, oldest: int, *, client: bytes = b"", connection: int = 1) -> None:
    tso.ask(ReportOpenStarts(client or peer.encode(), connection, oldest), peer)


def low_watermark(tso: Script) -> int:
    """After the next rise; everything durable."""
    tso.pass_time(INTERVAL_S, times=3)
    status = tso.machine.status()
    assert status.watermark == status.low_watermark
    return status.low_watermark


def test_t16_an_eviction_raises_lwm_past_an_open_start_and_w_stays() -> None:
    """A map of one bucket. Of a client that does not tell (Java) the starts are kept as well."""
    tso = script(conflict_map_entries=1, write_set_fraction_max=100.0)
    silent, told, writer = begun(tso, "java"), begun(tso, "a"), begun(tso, "b")
    tells(tso, "a", told)
    for first in range(0, 300, 28):
        start_ts = begun(tso, "b")
        tells(tso, "b", start_ts)
        assert isinstance(tso.commit(start_ts, *range(first, first + 28)), CommitReply)
        tells(tso, "b", 0)
        tso.pass_time(INTERVAL_S)
    status = tso.machine.status()
    assert status.watermark < silent < told < writer < status.low_watermark
    assert "an unnamed client" in status.held_back_by
    refused = tso.commit(told, 1000)
    assert isinstance(refused, CommitReply)
    assert refused.reason is AbortReason.LOW_WATERMARK, "what the map has forgotten may be in its way"
    tells(tso, "a", 0)
    tso.pass_time(1.2 * AGE_S)
    assert tso.machine.status().watermark >= writer, "age passes all"


def test_an_open_transaction_may_claim_a_table_whatever_was_evicted() -> None:
    tso = script(conflict_map_entries=1, write_set_fraction_max=100.0)
    claimer = begun(tso, "a")
    tells(tso, "a", claimer)
    for first in range(0, 300, 28):
        assert isinstance(tso.commit(begun(tso, "b"), *range(first, first + 28), table_ids=(7,)), CommitReply)
    assert low_watermark_of_commits(tso) > claimer
    answer = tso.commit(claimer, table_ids=(8,), level=WriteSetLevel.TABLE)
    assert isinstance(answer, CommitReply)
    assert answer.committed


def low_watermark_of_commits(tso: Script) -> int:
    tso.pass_time(3 * INTERVAL_S)
    return tso.machine.status().low_watermark


def test_t16_a_silent_peer_holds_lwm_until_its_starts_are_old() -> None:
    tso = script()
    start_ts = begun(tso, "java")
    last = begun(tso, "java")
    assert low_watermark(tso) < start_ts
    tso.tick(1.2 * AGE_S)
    assert low_watermark(tso) >= last


def test_t16_an_overtaken_telling_counts_for_its_own_connection_only() -> None:
    tso = script()
    tells(tso, "one", 0, client=b"a", connection=1)
    tells(tso, "two", 0, client=b"a", connection=2)
    start_ts = begun(tso, "two")
    tells(tso, "one", 0, client=b"a", connection=1)
    assert low_watermark(tso) < start_ts
    tso.done(PeerGone("two"))
    tells(tso, "one", 0, client=b"a", connection=1)
    assert low_watermark(tso) < start_ts


def test_t16_the_name_of_another_client_frees_nothing() -> None:
    tso = script()
    tells(tso, "a", 0)
    start_ts = begun(tso, "a")
    tso.done(PeerGone("a"))
    tells(tso, "b", 0, connection=9)
    assert low_watermark(tso) < start_ts


def test_t16_a_lease_holds_lwm_though_nothing_is_told_open() -> None:
    tso = script()
    start_ts = begun(tso, "a")
    tso.ask_settled(GrantLease(start_ts, 1000.0))
    tells(tso, "a", 0)
    begun(tso, "b")
    tells(tso, "b", 0)
    assert low_watermark(tso) < start_ts


def test_t15_no_telling_holds_an_old_start() -> None:
    tso = script()
    start_ts = begun(tso, "a")
    for _ in range(12):
        tells(tso, "a", 1)
        begun(tso, "a")
        tso.tick(AGE_S / 10)
    assert low_watermark(tso) >= start_ts


@pytest.mark.parametrize("oldest", [-(1 << 63), -1, (1 << 63) - 1])
def test_whatever_a_peer_tells_lwm_stays_below_the_newest_start(oldest: int) -> None:
    tso = script()
    newest = begun(tso, "a")
    tells(tso, "a", oldest)
    tso.ask(ReportOpenStarts(b"x" * 10_000, -(1 << 63), oldest, "\x1b[31m" * 1000), "b")
    assert low_watermark(tso) <= tso.machine.state.newest_start
    assert newest <= tso.machine.state.newest_start
    assert len(tso.machine.status().held_back_by) < 300


def test_status_names_who_holds_lwm_back() -> None:
    tso = script()
    start_ts = begun(tso, "a")
    tso.ask(ReportOpenStarts(b"a", 1, start_ts, "process 7 on host"), "a")
    low_watermark(tso)
    assert tso.machine.status().held_back_by.startswith(f"process 7 on host: start {start_ts} or a later one")
    assert report(tso) == ("open start", "process 7 on host")
    tells(tso, "a", 0)
    low_watermark(tso)
    assert tso.machine.status().held_back_by == ""
    assert report(tso) == ("", "")


def test_figures_name_what_holds_w_back_most() -> None:
    tso = script()
    leased, open_start = begun(tso, "a"), begun(tso, "a")
    tso.ask(ReportOpenStarts(b"a", 1, open_start, "process 7 on host"), "a")
    tso.ask(GrantLease(leased, 60.0, "process 8 on host"), "b")
    low_watermark(tso)
    assert report(tso) == ("lease", "process 8 on host")
    tso.ask(EndLease(leased), "b")
    low_watermark(tso)
    assert report(tso) == ("open start", "process 7 on host")


def report(tso: Script) -> tuple[str, str]:
    found = tso.machine.report()
    return found.watermark_held, found.watermark_holder


def test_t16_starts_are_held_in_whichever_order_they_are_noted() -> None:
    """A driver notes starts by itself, and is asked later: another one was handed out the long way meanwhile."""
    starts = OpenStarts()
    starts.handed_out("a", 200, 201)
    starts.handed_out("a", 100, 102)
    assert starts.held() == {"a": (101, 201)}


def test_ended_connections_are_remembered_in_bounded_memory() -> None:
    starts = OpenStarts()
    for number in range(2 * ENDED_MAX):
        starts.handed_out(number, 100 + number, 101 + number)
        starts.gone(number)
    held = starts.lowest(0)
    assert held is not None
    assert held.bound == 101, "the oldest is not forgotten"
    held = starts.lowest(100 + ENDED_MAX // 2)
    assert held is not None
    assert starts.lowest(100 + 2 * ENDED_MAX) is None, "all are old"
