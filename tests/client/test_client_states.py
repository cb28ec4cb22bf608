"""The life of a transaction: every pair of state and event."""

from __future__ import annotations

from itertools import product

import pytest

from pyomid.client.transaction import ENDED, TRANSITIONS, Event, State, next_state
from pyomid.errors import TransactionEnded

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(("state", "event"), list(product(State, Event)))
def test_an_event_that_the_state_does_not_know_raises_and_names_both(state: State, event: Event) -> None:
    if (state, event) in TRANSITIONS:
        assert next_state(state, event, start_ts=100) is TRANSITIONS[state, event]
        return
    with pytest.raises(TransactionEnded) as caught:
        next_state(state, event, start_ts=100, reason="because")
    message = str(caught.value)
    assert "100" in message
    assert state.value in message
    assert event.value in message
    assert "because" in message


@pytest.mark.parametrize("state", sorted(ENDED))
def test_nothing_follows_an_end(state: State) -> None:
    assert not [event for known, event in TRANSITIONS if known is state]


def test_every_state_is_reached_and_every_one_that_is_no_end_can_end() -> None:
    reached = {State.ACTIVE} | set(TRANSITIONS.values())
    assert reached == set(State)
    for state in set(State) - ENDED:
        assert _can_end(state)


def test_no_event_leads_from_rollback_only_to_a_commit() -> None:
    assert not {State.COMMITTED, State.COMMITTING} & _reachable(State.ROLLBACK_ONLY)


def _can_end(state: State) -> bool:
    return bool(ENDED & _reachable(state))


def _reachable(state: State) -> set[State]:
    found, waiting = {state}, [state]
    while waiting:
        at = waiting.pop()
        after = {to for (known, _), to in TRANSITIONS.items() if known is at} - found
        found |= after
        waiting += after
    return found
