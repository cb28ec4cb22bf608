"""The life of a transaction as a table. An event that the present state does not know raises and changes nothing.

    ACTIVE ──commit──▶ COMMITTING ──committed──▶ COMMITTED
      │ │                  ├───────refused──────▶ ROLLED_BACK
      │ └─doom─▶ DOOMED    ├───────failed───────▶ DOOMED         nothing was sent, or nothing took effect
      │             │      └───────lost─────────▶ UNKNOWN        the commit may have happened
      └──roll_back──┴──────────────────────────▶ ROLLED_BACK

DOOMED is "rollback-only": reads still work, writes and commit are refused.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from pyomid.errors import TransactionEnded


class State(StrEnum):
    ACTIVE = "active"
    DOOMED = "rollback-only"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "of unknown outcome"


class Event(StrEnum):
    DOOM = "mark rollback-only"
    COMMIT = "commit"
    COMMITTED = "be acknowledged"
    REFUSED = "be refused"
    FAILED = "fail before the commit"
    LOST = "lose its answer"
    ROLL_BACK = "roll back"
    WRITE = "write"
    READ = "read"


TRANSITIONS: Final[dict[tuple[State, Event], State]] = {
    (State.ACTIVE, Event.READ): State.ACTIVE,
    (State.ACTIVE, Event.WRITE): State.ACTIVE,
    (State.ACTIVE, Event.DOOM): State.DOOMED,
    (State.ACTIVE, Event.COMMIT): State.COMMITTING,
    (State.ACTIVE, Event.ROLL_BACK): State.ROLLED_BACK,
    (State.DOOMED, Event.READ): State.DOOMED,
    (State.DOOMED, Event.DOOM): State.DOOMED,
    (State.DOOMED, Event.ROLL_BACK): State.ROLLED_BACK,
    (State.COMMITTING, Event.COMMITTED): State.COMMITTED,
    (State.COMMITTING, Event.REFUSED): State.ROLLED_BACK,
    (State.COMMITTING, Event.FAILED): State.DOOMED,
    (State.COMMITTING, Event.LOST): State.UNKNOWN,
}

ENDED: Final = frozenset({State.COMMITTED, State.ROLLED_BACK, State.UNKNOWN})


def next_state(state: State, event: Event, *, start_ts: int, reason: str = "") -> State:
    """The state after `event`; `TransactionEnded` where the table has no line, saying why if a reason is known."""
    after = TRANSITIONS.get((state, event))
    if after is None:
        because = f" ({reason})" if reason else ""
        raise TransactionEnded(
            f"transaction {start_ts} is {state.value}{because}: it cannot {event.value}",
            start_ts=start_ts,
            state=state.value,
        )
    return after
