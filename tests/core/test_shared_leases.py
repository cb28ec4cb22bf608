"""Leases that many share: what they cost does not grow with their number, and each is kept as it was promised (K7)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine_script import Script

from pyomid.errors import SnapshotTooOld, Unavailable
from pyomid.omid.oracle.leases import SHARED_TERM_PARTS, Leases, LeaseState
from pyomid.omid.wire.messages import EndLease, GrantLease, LeaseReply
from pyomid.types import CommitReply, CommitRequest

pytestmark = pytest.mark.fast

TERM_S = 300.0


def share(tso: Script, start_ts: int, term_s: float = TERM_S) -> int:
    """The start that is leased for it."""
    answer = tso.ask_settled(GrantLease(start_ts, term_s, shared=True)).answer
    assert isinstance(answer, LeaseReply), answer
    return answer.start_ts


def pass_time(tso: Script, seconds: float) -> None:
    """What is over then is gone, and W published behind it."""
    tso.pass_time(seconds)
    tso.pass_time(1.0)


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
    assert oldest_kept - 50 <= tso.machine.state.watermarks.published < tso.machine.state.leases.starts[0]


def test_a_read_that_asks_again_is_kept_for_hours() -> None:
    tso = Script(max_transaction_age_s=10.0)
    reads = [tso.begin() for _ in range(10)]
    for _ in range(20):
        for start_ts in reads:
            share(tso, start_ts)
        share(tso, tso.begin())
        pass_time(tso, TERM_S / 3)
        assert tso.machine.state.watermarks.published < reads[0]
    pass_time(tso, TERM_S * 1.2)
    assert tso.machine.state.watermarks.published > reads[-1]


def test_a_shared_lease_that_is_lost_is_told_to_every_sharer() -> None:
    tso = Script(max_transaction_age_s=10.0)
    loads = [tso.begin() for _ in range(5)]
    assert {share(tso, start_ts) for start_ts in loads} == {loads[0]}
    tso.ask_settled(EndLease(loads[0]))
    assert loads[0] in tso.machine.state.leases, "it is no owner's to end"
    tso.ask_settled(EndLease(loads[0], shared=True))
    pass_time(tso, 20.0)
    for start_ts in loads:
        assert isinstance(tso.ask_settled(GrantLease(start_ts, TERM_S, shared=True)).refusal(), SnapshotTooOld)


def test_a_large_commit_leaves_its_lease_to_sharers() -> None:
    tso = Script(max_transaction_age_s=10.0)
    job = tso.begin()
    branch = tso.begin()
    tso.ask_settled(GrantLease(job, 1000.0))
    share(tso, job)
    reply = tso.told(CommitReply, CommitRequest(job, (1,), branches=(branch,)))
    assert reply.committed
    assert tso.stores.leader_state.read().leases == {job}
    pass_time(tso, TERM_S - 10)
    assert tso.machine.state.watermarks.published < job
    pass_time(tso, 20.0)
    assert tso.stores.leader_state.read().leases == frozenset()


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
