"""Changes of the leader state, merged, have the effect of all of them one after the other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyomid.omid.memory import changed
from pyomid.omid.oracle.outgoing import merged
from pyomid.types import LeaderRecord, LeaderStateChanges, PendingCommit

pytestmark = pytest.mark.fast

names = st.integers(1, 4)
one_change = st.one_of(
    st.builds(lambda s: LeaderStateChanges(leases_added=(s,)), names),
    st.builds(lambda s: LeaderStateChanges(leases_removed=(s,)), names),
    st.builds(lambda s, b: LeaderStateChanges(pending_added=(PendingCommit(s, (b,)),)), names, names),
    st.builds(lambda s: LeaderStateChanges(pending_removed=(s,)), names),
    st.builds(lambda s: LeaderStateChanges(pending_removed=(s,), leases_removed=(s,)), names),
)
rising = st.lists(st.integers(1, 100), min_size=1, max_size=5).map(sorted)


@given(st.lists(one_change, max_size=8), st.frozensets(names))
def test_merged_equals_one_after_the_other(changes: list[LeaderStateChanges], leases: frozenset[int]) -> None:
    start = LeaderRecord(epoch=50, leases=leases, pending=(PendingCommit(1, (9,)),))
    one_by_one = start
    for change in changes:
        one_by_one = changed(one_by_one, change)
    at_once = changed(start, merged(changes))
    assert at_once.leases == one_by_one.leases
    assert sorted(at_once.pending, key=lambda p: p.start_ts) == sorted(one_by_one.pending, key=lambda p: p.start_ts)


@given(rising)
def test_watermarks_and_ceiling_end_at_the_highest(values: list[int]) -> None:
    changes = [LeaderStateChanges(watermark=v, horizon=v, ceiling=v) for v in values]
    once = merged([*changes, LeaderStateChanges()])
    assert (once.watermark, once.horizon, once.ceiling) == (values[-1],) * 3
