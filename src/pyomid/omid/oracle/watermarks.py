"""Raise the watermarks: LWM and E as transactions end, W below them, and H when the commit table is sanitized.

H ≤ W ≤ D ≤ E ≤ LWM

LWM   no transaction that started at or below it can commit by ids (`omid.oracle.status_oracle`)
E     every start at or below it has ended, or is too old to count (T15, T16). LWM rises with E; evictions from the
      conflict map raise LWM alone, so an open transaction below LWM still reads, although it cannot commit
D     min(E, every lease above D − 1, every unfinished large commit − 1): no transaction with a start at or below it can
      commit, even by claiming tables. The TSO forgets those starts
W     min(D, every lease − 1, what the retention keeps), durable: compaction and sanitizing follow it (law 4)
H     below it the commit table is not consulted (law 7)
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from pyomid.errors import Misuse, Unavailable
from pyomid.omid.oracle import begins
from pyomid.omid.oracle.instructions import DeleteBelow
from pyomid.omid.oracle.open_starts import Held
from pyomid.omid.oracle.outgoing import EpochWrite
from pyomid.omid.oracle.state import TsoState
from pyomid.omid.wire.messages import HorizonReply
from pyomid.protocol.timestamps import dated, kept_start
from pyomid.types import LeaderStateChanges

AGE_SAMPLES: Final = 16
"""How many samples of the newest start are taken per `max_transaction_age_s`. So E by age lags by at most a sixteenth
of that age."""


def run_timers(tso: TsoState) -> None:
    _raise_by_age(tso)
    _raise_by_open(tso)
    _publish(tso)


# ── LWM and E ────────────────────────────────────────────────────────────────────────────────────────────────


def raise_ended(tso: TsoState, start_ts: int) -> None:
    """Raise E, and LWM with it. From now on no transaction with a start at or below E commits by ids.

    Law 4: W may follow this E only once every commit decided so far is durable.
    """
    marks = tso.watermarks
    if start_ts <= marks.ended:
        return
    marks.ended = start_ts
    tso.oracle.raise_low_watermark(start_ts)
    batch = tso.windows.open_batch
    due = batch.seq - 1 if batch.is_empty else batch.seq
    if marks.rises and marks.rises[-1][1] == due:
        marks.rises.pop()
    marks.rises.append((start_ts, due))
    _note_durable_ended(tso)


def note_release(tso: TsoState) -> None:
    """Note that a batch was released."""
    _note_durable_ended(tso)


def _note_durable_ended(tso: TsoState) -> None:
    """T2: let W follow E up to the rises of E before which all decided batches are released."""
    marks = tso.watermarks
    while marks.rises and marks.rises[0][1] <= tso.windows.released_seq:
        marks.durable_ended = marks.rises.popleft()[0]


def _raise_by_age(tso: TsoState) -> None:
    """T15: raise E to the newest start handed out more than `max_transaction_age_s` ago, but keep it below every lease
    above D."""
    marks = tso.watermarks
    now_s, age_s = tso.step.now_s, tso.settings.max_transaction_age_s
    if now_s - marks.sampled_s >= age_s / AGE_SAMPLES:
        marks.sampled_s = now_s
        _sample_age(tso)
    while marks.samples and marks.samples[0][0] <= now_s - age_s:
        marks.aged_start = marks.samples.popleft()[1]
    _raise_below_leases(tso, marks.aged_start)


def _raise_by_open(tso: TsoState) -> None:
    """T16: raise E to just below the oldest open start."""
    marks = tso.watermarks
    if tso.step.now_s < marks.open_due_s:
        return
    marks.open_due_s = tso.step.now_s + tso.settings.open_starts_interval_s
    if tso.windows.is_idle:  # while a batch is in flight, begins are answered from its window alone
        draw_if_quiet(tso)
    newest, held = tso.newest_start, tso.open_starts.lowest(marks.aged_start)
    _raise_below_leases(tso, newest if held is None else min(newest, held.bound - 1))
    bound = 0 if held is None else held.bound
    if bound != marks.held_bound:
        marks.held_bound, marks.held_since_s = bound, tso.step.now_s
    marks.open_held, marks.held_back_by = held, _holder_text(tso, held)


def _holder_text(tso: TsoState, held: Held | None) -> str:
    lowest = tso.leases.lowest_above(tso.watermarks.decided)
    if held is None or (lowest is not None and lowest <= held.bound):
        return ""
    since_s = tso.step.now_s - tso.watermarks.held_since_s
    return f"{held.holder or 'an unnamed client'}: start {dated(held.bound)} or a later one, for {since_s:.0f} s"


def _raise_below_leases(tso: TsoState, start_ts: int) -> None:
    lowest = tso.leases.lowest_above(tso.watermarks.decided)
    raise_ended(tso, start_ts if lowest is None else min(start_ts, lowest - 1))


def _sample_age(tso: TsoState) -> None:
    draw_if_quiet(tso)
    if tso.newest_start > _newest_sample(tso):
        tso.watermarks.samples.append((tso.step.now_s, tso.newest_start))


def draw_if_quiet(tso: TsoState) -> None:
    """Draw a start if there are no requests. Otherwise E would never pass the last commits."""
    marks = tso.watermarks
    windows = tso.windows
    if marks.drawn_start == tso.newest_start > windows.closed_ts and windows.is_idle:
        return
    drawn = begins.draw_start(tso)
    marks.needs_start = drawn is None and windows.is_idle
    # A commit that is decided but not yet answered may lie above the drawn start.
    if drawn is not None and windows.is_idle:
        marks.drawn_start = drawn


def _newest_sample(tso: TsoState) -> int:
    marks = tso.watermarks
    return marks.samples[-1][1] if marks.samples else marks.aged_start


# ── W ────────────────────────────────────────────────────────────────────────────────────────────────────────


def may_have_passed(tso: TsoState, start_ts: int) -> bool:
    """Return whether W may have passed the start. T12: a W that was sent may be durable even if the store has not
    replied."""
    return start_ts <= tso.watermarks.sent


def _raise_decided(tso: TsoState) -> None:
    marks = tso.watermarks
    held = [start - 1 for start in tso.pending]
    lowest = tso.leases.lowest_above(marks.decided)
    if lowest is not None:
        held.append(lowest - 1)
    decided = min([marks.durable_ended, *held])
    if decided > marks.decided:
        marks.decided = decided
        tso.oracle.forget_up_to(decided)
        tso.rare_starts.forget_some()


def _candidate(tso: TsoState) -> int:
    """Return the W to publish: min(durable E, leases − 1, unfinished large commits − 1, what the retention keeps)."""
    held = [start - 1 for start in tso.pending]
    if tso.leases.lowest is not None:
        held.append(tso.leases.lowest - 1)
    if tso.retention_s:
        held.append(_kept_start(tso))
    return min([tso.watermarks.durable_ended, *held])


def _kept_start(tso: TsoState) -> int:
    """T17: return the highest W that the retention permits."""
    return kept_start(tso.step.wall_ns, tso.retention_s)


def holder(tso: TsoState) -> tuple[str, str]:
    """Return what holds W back and its owner, as text for people. Both are empty if W follows the newest start."""
    marks = tso.watermarks
    held = [(start, "large commit", "") for start in tso.pending]
    lease = tso.leases.lowest
    if lease is not None:
        held.append((lease, "lease", tso.leases.holder_of(lease)))
    if marks.open_held is not None:
        held.append((marks.open_held.bound, "open start", marks.open_held.holder))
    if tso.retention_s:
        held.append((_kept_start(tso) + 1, "retention", ""))
    _, what, whose = min(held, default=(0, "", ""))
    return what, whose


def _publish(tso: TsoState) -> None:
    marks = tso.watermarks
    if tso.step.now_s < marks.publish_due_s:
        return
    marks.publish_due_s = tso.step.now_s + tso.settings.watermark_interval_s
    _raise_decided(tso)
    candidate = _candidate(tso)
    if candidate > marks.sent:
        marks.sent = candidate
        tso.store.run(_publish_durably(tso, candidate))


async def _publish_durably(tso: TsoState, watermark: int) -> None:
    await EpochWrite(LeaderStateChanges(watermark=watermark))
    tso.watermarks.published = max(tso.watermarks.published, watermark)


# ── H ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def advance_horizon(tso: TsoState, peer: Hashable, tag: int, horizon: int) -> None:
    if horizon < 0 or horizon > tso.watermarks.published:
        why = "is below 0" if horizon < 0 else f"is above the published low watermark {dated(tso.watermarks.published)}"
        tso.step.refuse(peer, tag, Misuse(f"horizon {horizon} {why}", horizon=horizon))
        return
    try:
        deleted = await _sanitize(tso, horizon)
    except Unavailable as error:
        tso.step.refuse(peer, tag, error)
        return
    tso.step.reply(peer, tag, HorizonReply(deleted))


async def _sanitize(tso: TsoState, horizon: int) -> int:
    """Law 7: make H durable, then delete the entries below it and return their number. From the call on, no outcome
    below H is reported (R4)."""
    marks = tso.watermarks
    marks.horizon = max(marks.horizon, horizon)
    # Write H even if it does not rise, because the write of an earlier request may still be in flight.
    await EpochWrite(LeaderStateChanges(horizon=marks.horizon))
    deleted: int = await DeleteBelow(horizon)
    tso.step.counters["entries_sanitized"] += deleted
    return deleted


# ── invariants ───────────────────────────────────────────────────────────────────────────────────────────────


def validate(tso: TsoState) -> None:
    marks = tso.watermarks
    assert marks.published <= marks.sent <= marks.decided, "W is published, and never above D"
    assert marks.decided <= marks.durable_ended, "D never passes E"
    assert marks.horizon <= marks.published, "H never passes W"
    assert tso.oracle.epoch <= marks.durable_ended <= marks.ended <= tso.oracle.low_watermark
    for start_ts in (*tso.leases.starts, *tso.pending):
        assert start_ts > marks.sent, f"W {marks.sent} passed {start_ts}, which holds it"
    for start_ts in tso.pending:
        assert start_ts > marks.decided, f"D {marks.decided} passed {start_ts}, which is not finished"
