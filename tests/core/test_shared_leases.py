"""Leases that many share: what they cost does not grow with their number, and each is kept as it was promised (K7)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine_script import Script

from pyomid.errors import SnapshotTooOld, Unavailable
from pyomid.oracle.instructions import UpdateLeaderState
from pyomid.oracle.leases import SHARED_TERM_PARTS, Leases, LeaseState
from pyomid.types import CommitReply, CommitRequest
from pyomid.wire.messages import EndLease, GrantLease, LeaseReply, RenewLease

pytestmark = pytest.mark.fast

TERM_S = 300.0


def share(tso: Script, start_ts: int, term_s: float = TERM_S) -> int:
    """The start that is leased for it."""
    answer = tso.ask_settled(GrantLease(start_ts, term_s, shared=True)).answer
    assert isinstance(answer, LeaseReply), answer
    return answer.start_ts


def pass_time(tso: Script, seconds: float) -> None:
    """What is over then is gone, and W published behind it."""
    tso.tick(seconds)
    tso.settle()
    tso.tick(1.0)
    tso.settle()


def test_thousands_of_loads_share_a_few_leases() -> None:
    """Each in a process of its own. With a lease each all of the TSO's would be used up, for everybody."""
    tso = Script(leases_max=40, max_transaction_age_s=10.0)
    most = 0
    for _ in range(1000):
        start_ts = tso.begin()
        assert share(tso, start_ts) <= start_ts
        pass_time(tso, 0.0)
        most = max(most, len(tso.machine.leases))
    assert most <= SHARED_TERM_PARTS + 2
    assert tso.machine.step.counters["leases_granted"] <= 1000 / (TERM_S / SHARED_TERM_PARTS) + 1
    pass_time(tso, TERM_S)
    assert len(tso.machine.leases) == 0


def test_w_follows_the_oldest_load_while_new_ones_come() -> None:
    """Not the first load of all, whose lease younger ones would keep for ever."""
    tso = Script(max_transaction_age_s=10.0)
    began: list[tuple[float, int]] = []
    for _ in range(1000):
        start_ts = tso.begin()
        share(tso, start_ts)
        began.append((tso.now_s, start_ts))
        pass_time(tso, 1.0)
    oldest_kept = min(s for at_s, s in began if at_s >= tso.now_s - TERM_S * (1 + 2 / SHARED_TERM_PARTS))
    assert oldest_kept - 50 <= tso.machine.watermarks.published < tso.machine.leases.starts[0]


def test_a_long_write_is_kept_while_loads_come_and_go() -> None:
    """And W moves on at once when it ended, to the oldest load."""
    tso = Script(max_transaction_age_s=10.0)
    write = tso.begin()
    tso.ask_settled(GrantLease(write, TERM_S))
    for second in range(700):
        share(tso, tso.begin())
        pass_time(tso, 1.0)
        if second % 100 == 0:
            assert isinstance(tso.ask_settled(RenewLease(write)).answer, LeaseReply)
        assert tso.machine.watermarks.published < write
    tso.ask_settled(EndLease(write))
    pass_time(tso, 1.0)
    assert write < tso.machine.watermarks.published == tso.machine.leases.starts[0] - 1


def test_loads_do_not_keep_w_where_a_write_ended() -> None:
    tso = Script(max_transaction_age_s=10.0)
    write = tso.begin()
    tso.ask_settled(GrantLease(write, TERM_S))
    load = tso.begin()
    assert share(tso, load) == load, "a write's lease ends with it"
    pass_time(tso, 20.0)
    assert tso.machine.watermarks.published == write - 1
    tso.ask_settled(EndLease(write))
    pass_time(tso, 1.0)
    assert tso.machine.watermarks.published == load - 1


def test_a_read_that_asks_again_is_kept_for_hours() -> None:
    tso = Script(max_transaction_age_s=10.0)
    reads = [tso.begin() for _ in range(10)]
    for _ in range(20):
        for start_ts in reads:
            share(tso, start_ts)
        share(tso, tso.begin())
        pass_time(tso, TERM_S / 3)
        assert tso.machine.watermarks.published < reads[0]
    pass_time(tso, TERM_S * 1.2)
    assert tso.machine.watermarks.published > reads[-1]


def test_a_shared_lease_that_is_lost_is_told_to_every_sharer() -> None:
    tso = Script(max_transaction_age_s=10.0)
    loads = [tso.begin() for _ in range(5)]
    assert {share(tso, start_ts) for start_ts in loads} == {loads[0]}
    tso.ask_settled(EndLease(loads[0]))
    assert loads[0] in tso.machine.leases, "it is no owner's to end"
    tso.ask_settled(EndLease(loads[0], shared=True))
    pass_time(tso, 20.0)
    for start_ts in loads:
        assert isinstance(tso.ask_settled(GrantLease(start_ts, TERM_S, shared=True)).refusal(), SnapshotTooOld)


def test_an_owner_and_sharers_of_one_start_end_apart() -> None:
    tso = Script(max_transaction_age_s=10.0)
    start_ts = tso.begin()
    tso.ask_settled(GrantLease(start_ts, 1000.0))
    assert share(tso, start_ts) == start_ts
    tso.ask_settled(EndLease(start_ts))
    assert isinstance(tso.ask_settled(RenewLease(start_ts)).refusal(), SnapshotTooOld), "its owner's part is over"
    pass_time(tso, TERM_S - 10)
    assert tso.machine.watermarks.published < start_ts
    pass_time(tso, 20.0)
    assert tso.machine.watermarks.published >= start_ts


def test_a_large_commit_leaves_its_lease_to_sharers() -> None:
    tso = Script(max_transaction_age_s=10.0)
    job = tso.begin()
    branch = tso.begin()
    tso.ask_settled(GrantLease(job, 1000.0))
    share(tso, job)
    reply = tso.ask_settled(CommitRequest(job, (1,), branches=(branch,))).answer
    assert isinstance(reply, CommitReply)
    assert reply.committed
    assert tso.stores.leader_state.read().leases == {job}
    pass_time(tso, TERM_S - 10)
    assert tso.machine.watermarks.published < job
    pass_time(tso, 20.0)
    assert tso.stores.leader_state.read().leases == frozenset()


def test_who_shares_a_lease_waits_for_its_row() -> None:
    tso = Script()
    first, second = tso.begin(), tso.begin()
    asked = [tso.ask(GrantLease(start_ts, TERM_S, shared=True)) for start_ts in (first, second)]
    assert [waiting.answer for waiting in asked] == [None, None]
    tso.finish(UpdateLeaderState)
    tso.settle()
    assert [waiting.answer for waiting in asked] == [LeaseReply(first, TERM_S)] * 2
    third = tso.ask(GrantLease(tso.begin(), TERM_S, shared=True))
    assert third.answer == LeaseReply(first, TERM_S), "a durable lease is shared without a write"


def test_sharers_are_served_where_no_lease_is_left() -> None:
    tso = Script(leases_max=2)
    first = tso.begin()
    share(tso, first)
    assert isinstance(tso.ask_settled(GrantLease(tso.begin(), TERM_S, "a job")).answer, LeaseReply)
    assert share(tso, tso.begin()) == first
    pass_time(tso, TERM_S / 2)
    refused = tso.ask_settled(GrantLease(tso.begin(), TERM_S, "a load", shared=True)).refusal()
    assert isinstance(refused, Unavailable)
    assert "1 by a job" in refused.message


def test_a_new_tso_keeps_what_was_shared() -> None:
    tso = Script(max_transaction_age_s=10.0)
    loads = [tso.begin() for _ in range(3)]
    for start_ts in loads:
        share(tso, start_ts)
    after = Script(tso.stores, max_transaction_age_s=10.0)
    pass_time(after, 20.0)
    assert after.machine.watermarks.published < loads[0]
    assert [share(after, start_ts) for start_ts in reversed(loads)][-1] == loads[0]
    assert len(after.machine.leases) <= 3


@given(
    st.lists(st.tuples(st.integers(1, 40), st.floats(0.0, 30.0), st.sampled_from([10.0, 100.0])), max_size=60),
    st.integers(0, 40),
)
def test_every_sharer_is_kept_to_the_end_of_its_term(asked: list[tuple[int, float, float]], owner: int) -> None:
    """Whatever the order of their starts and terms, beside an owner that comes and goes."""
    leases = Leases((), term_s=TERM_S, now_s=0.0)
    promised: list[tuple[int, float]] = []
    now_s = 0.0
    for number, (start_ts, pause_s, term_s) in enumerate(asked):
        if owner and number % 7 == 3 and owner not in leases:
            leases.grant(owner, 50.0, now_s).state = LeaseState.LIVE
        if owner in leases and number % 7 == 5:
            leases.end(owner, now_s)
            leases.forget(owner)
        lease = leases.share(start_ts, term_s, now_s)
        if lease.state is LeaseState.GRANTING:
            lease.state = LeaseState.LIVE
        assert lease.start_ts <= start_ts
        promised.append((start_ts, now_s + term_s))
        now_s += pause_s
        for over in leases.expire(now_s):
            leases.forget(over)
        for kept_ts, until_s in promised:
            assert until_s <= now_s or (leases.lowest or 99) <= kept_ts
