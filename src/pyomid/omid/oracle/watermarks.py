"""The watermarks: LWM and E rise, W is published below them, and H rises when the commit table is sanitized.

H ≤ W ≤ D ≤ E ≤ LWM

LWM   no transaction that started at or below it can commit by ids (`omid.oracle.status_oracle`)
E     every start at or below it has ended, or is too old to count (T15, T16). LWM rises with E; evictions from the
      conflict map raise LWM alone, so an open transaction below LWM still reads, although it cannot commit
D     min(E, every lease above D − 1, every unfinished large commit − 1): every start at or below it is decided, also
      transactions that claim tables. The TSO forgets those starts
W     min(D, every lease − 1, what the retention keeps), durable: compaction and sanitizing follow it (law 4)
H     below it the commit table is not consulted (law 7)

Open starts (T16; the client's side is `omid.wire.client_protocol`): the oldest start that a client may still use holds
E, and so W, back:

    a start is handed out over a connection    ──► E stays below it
    the client reports its oldest open start   ──► E stays below that start; if none is open, the connection holds
                                                   nothing
    the connection ends                        ──► it still holds E, until its client reports over a later connection

A peer that never reports (a Java client) holds E by the first start it received. Age overrides all (T15): when the
newest start that a connection may hold is too old, the connection holds nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyomid.errors import Misuse, Unavailable
from pyomid.omid.oracle.instructions import DeleteBelow
from pyomid.omid.oracle.outgoing import EpochWrite
from pyomid.omid.oracle.takeover import TakenOver
from pyomid.omid.wire.messages import HorizonReply, ReportOpenStarts
from pyomid.protocol.timestamps import dated, kept_start
from pyomid.types import LeaderStateChanges

if TYPE_CHECKING:
    from pyomid.omid.oracle.machine import TsoMachine

AGE_SAMPLES: Final = 16
"""Samples of the newest start per `max_transaction_age_s`: E by age lags at most a sixteenth of it."""

ENDED_MAX: Final = 1000
"""Ended connections remembered one by one; beyond this the two oldest are merged, with the lower of their bounds."""

_CLIENT_BYTES_MAX: Final = 32
_HOLDER_CHARS_MAX: Final = 120


class Watermarks:
    """LWM, E, D, W and H of one TSO. Leases and pending large commits hold W back."""

    def __init__(self, tso: TsoMachine, taken_over: TakenOver) -> None:
        self._tso = tso
        self.published = self.sent = taken_over.watermark
        """`published`: the durable W. `sent`: the highest W sent to the store."""
        self.decided = taken_over.epoch
        """D. It never goes back. A lease at or below it is a reader's and holds W alone."""
        self.horizon = taken_over.horizon
        """H."""
        self._ended = taken_over.epoch
        """E."""
        self._durable_ended = taken_over.epoch
        """The highest E with every commit that started at or below it durable (law 4)."""
        self._rises: deque[tuple[int, int]] = deque()
        """(E, the batch after whose release that E counts), ascending."""
        self._publish_due_s = tso.step.now_s
        self._samples: deque[tuple[float, int]] = deque()
        """(time, the newest start then), for some times of the last `max_transaction_age_s`."""
        self._aged_start = 0
        """The start that was the newest `max_transaction_age_s` ago."""
        self._sampled_s = tso.step.now_s
        self._drawn_start = tso.epoch
        """The start drawn last in a quiet time."""
        self.needs_start = False
        """A start is to be drawn above the last commits, and no window has one."""
        self._open_due_s = tso.step.now_s
        self._held_bound, self._held_since_s = 0, tso.step.now_s
        self.held_back_by = ""
        """The client whose open start held E back at the last rise, as text for operators; empty: none."""
        self._open_held: Held | None = None

    def run_timers(self) -> None:
        self._raise_by_age()
        self._raise_by_open()
        self._publish()

    # ── LWM and E ────────────────────────────────────────────────────────────────────────────────────────────────

    def raise_ended(self, start_ts: int) -> None:
        """Raise E, and LWM with it: from now on no start at or below E commits by ids.

        Law 4: E counts for W once every commit decided so far is durable.
        """
        if start_ts <= self._ended:
            return
        self._ended = start_ts
        self._tso.oracle.raise_low_watermark(start_ts)
        batch = self._tso.windows.open_batch
        due = batch.seq - 1 if batch.is_empty else batch.seq
        if self._rises and self._rises[-1][1] == due:
            self._rises.pop()
        self._rises.append((start_ts, due))
        self._note_durable_ended()

    def note_release(self) -> None:
        """A batch was released."""
        self._note_durable_ended()

    def _note_durable_ended(self) -> None:
        """T2: W follows E only when each batch that was decided before E rose is released."""
        while self._rises and self._rises[0][1] <= self._tso.windows.released_seq:
            self._durable_ended = self._rises.popleft()[0]

    def _raise_by_age(self) -> None:
        """T15: raise E to the newest start handed out more than `max_transaction_age_s` ago, below every lease."""
        now_s, age_s = self._tso.step.now_s, self._tso.settings.max_transaction_age_s
        if now_s - self._sampled_s >= age_s / AGE_SAMPLES:
            self._sampled_s = now_s
            self._sample_age()
        while self._samples and self._samples[0][0] <= now_s - age_s:
            self._aged_start = self._samples.popleft()[1]
        self._raise_below_leases(self._aged_start)

    def _raise_by_open(self) -> None:
        """T16: raise E to just below the oldest open start."""
        if self._tso.step.now_s < self._open_due_s:
            return
        self._open_due_s = self._tso.step.now_s + self._tso.settings.open_starts_interval_s
        if self._tso.windows.is_idle:  # with a batch in flight, begins are answered from its window alone
            self.draw_if_quiet()
        newest, held = self._tso.begins.newest_start, self._tso.open_starts.lowest(self._aged_start)
        self._raise_below_leases(newest if held is None else min(newest, held.bound - 1))
        bound = 0 if held is None else held.bound
        if bound != self._held_bound:
            self._held_bound, self._held_since_s = bound, self._tso.step.now_s
        self._open_held, self.held_back_by = held, self._holder_text(held)

    def _holder_text(self, held: Held | None) -> str:
        lowest = self._tso.leases.lowest_above(self.decided)
        if held is None or (lowest is not None and lowest <= held.bound):
            return ""
        since_s = self._tso.step.now_s - self._held_since_s
        return f"{held.holder or 'an unnamed client'}: start {dated(held.bound)} or a later one, for {since_s:.0f} s"

    def _raise_below_leases(self, start_ts: int) -> None:
        lowest = self._tso.leases.lowest_above(self.decided)
        self.raise_ended(start_ts if lowest is None else min(start_ts, lowest - 1))

    def _sample_age(self) -> None:
        self.draw_if_quiet()
        if self._tso.begins.newest_start > self._newest_sample():
            self._samples.append((self._tso.step.now_s, self._tso.begins.newest_start))

    def draw_if_quiet(self) -> None:
        """Draw a start if there are no requests: otherwise E would never pass the last commits."""
        begins, windows = self._tso.begins, self._tso.windows
        if self._drawn_start == begins.newest_start > windows.closed_ts and windows.is_idle:
            return
        drawn = begins.draw_start()
        self.needs_start = drawn is None and windows.is_idle
        # A commit that was decided and not yet answered may lie above the start drawn.
        if drawn is not None and windows.is_idle:
            self._drawn_start = drawn

    def _newest_sample(self) -> int:
        return self._samples[-1][1] if self._samples else self._aged_start

    # ── W ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def may_have_passed(self, start_ts: int) -> bool:
        """T12: a W that was sent may be durable, whether or not the store has replied."""
        return start_ts <= self.sent

    def _raise_decided(self) -> None:
        held = [start - 1 for start in self._tso.pending]
        lowest = self._tso.leases.lowest_above(self.decided)
        if lowest is not None:
            held.append(lowest - 1)
        decided = min([self._durable_ended, *held])
        if decided > self.decided:
            self.decided = decided
            self._tso.oracle.forget_up_to(decided)
            self._tso.rare_starts.forget_some()

    def _candidate(self) -> int:
        """Return the W to publish: min(E, leases − 1, unfinished large commits − 1, what the retention keeps)."""
        held = [start - 1 for start in self._tso.pending]
        if self._tso.leases.lowest is not None:
            held.append(self._tso.leases.lowest - 1)
        if self._tso.retention_s:
            held.append(self._kept_start())
        return min([self._durable_ended, *held])

    def _kept_start(self) -> int:
        """T17: W stays as old as the retention."""
        return kept_start(self._tso.step.wall_ns, self._tso.retention_s)

    def holder(self) -> tuple[str, str]:
        """Return what holds W back, and its owner, as text for people; empty if W follows the newest start."""
        held = [(start, "large commit", "") for start in self._tso.pending]
        lease = self._tso.leases.lowest
        if lease is not None:
            held.append((lease, "lease", self._tso.leases.holder_of(lease)))
        if self._open_held is not None:
            held.append((self._open_held.bound, "open start", self._open_held.holder))
        if self._tso.retention_s:
            held.append((self._kept_start() + 1, "retention", ""))
        _, what, whose = min(held, default=(0, "", ""))
        return what, whose

    def _publish(self) -> None:
        if self._tso.step.now_s < self._publish_due_s:
            return
        self._publish_due_s = self._tso.step.now_s + self._tso.settings.watermark_interval_s
        self._raise_decided()
        candidate = self._candidate()
        if candidate > self.sent:
            self.sent = candidate
            self._tso.store.run(self._publish_durably(candidate))

    async def _publish_durably(self, watermark: int) -> None:
        await EpochWrite(LeaderStateChanges(watermark=watermark))
        self.published = max(self.published, watermark)

    # ── H ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def advance_horizon(self, peer: Hashable, tag: int, horizon: int) -> None:
        if horizon < 0 or horizon > self.published:
            why = "is below 0" if horizon < 0 else f"is above the published low watermark {dated(self.published)}"
            self._tso.step.refuse(peer, tag, Misuse(f"horizon {horizon} {why}", horizon=horizon))
            return
        try:
            deleted = await self._sanitize(horizon)
        except Unavailable as error:
            self._tso.step.refuse(peer, tag, error)
            return
        self._tso.step.reply(peer, tag, HorizonReply(deleted))

    async def _sanitize(self, horizon: int) -> int:
        """Law 7: make H durable, then delete the entries below it. From now on no outcome below H is reported (R4)."""
        self.horizon = max(self.horizon, horizon)
        # Write H even if it is no higher: an earlier request's write may still be in flight.
        await EpochWrite(LeaderStateChanges(horizon=self.horizon))
        deleted: int = await DeleteBelow(horizon)
        self._tso.step.counters["entries_sanitized"] += deleted
        return deleted

    # ── invariants ───────────────────────────────────────────────────────────────────────────────────────────────

    def validate(self) -> None:
        assert self.published <= self.sent <= self.decided, "W is published, and never above D"
        assert self.decided <= self._durable_ended, "D never passes E"
        assert self.horizon <= self.published, "H never passes W"
        assert self._tso.oracle.epoch <= self._durable_ended <= self._ended <= self._tso.oracle.low_watermark
        for start_ts in (*self._tso.leases.starts, *self._tso.pending):
            assert start_ts > self.sent, f"W {self.sent} passed {start_ts}, which holds it"
        for start_ts in self._tso.pending:
            assert start_ts > self.decided, f"D {self.decided} passed {start_ts}, which is not finished"


@dataclass(slots=True)
class Held:
    """What the client of a connection may hold open: starts from `bound` to `newest`. `bound` 0: none."""

    bound: int = 0
    newest: int = 0
    client: bytes = b""
    """The client's random name; empty until its first report."""
    connection: int = 0
    """The number of the connection, ascending per client."""
    holder: str = ""
    """The client, as text for people."""


class OpenStarts:
    """The open starts of all connections, ended ones included."""

    def __init__(self) -> None:
        self._peers: dict[Hashable, Held] = {}
        self._ended: list[Held] = []
        self._of_client: dict[bytes, dict[Hashable, Held]] = {}

    def handed_out(self, peer: Hashable, above: int, newest: int) -> None:
        """Starts above `above` and up to `newest` are being sent to the peer. Calls may come in any order."""
        held = self._peers.get(peer)
        if held is None:
            held = self._peers[peer] = Held()
        held.bound = min(held.bound, above + 1) if held.bound else above + 1
        held.newest = max(held.newest, newest)

    def report(self, peer: Hashable, report: ReportOpenStarts, newest_start: int) -> None:
        """Take a report: all open starts of the client, whichever connection they came over, are at or above
        `report.oldest`; 0: it has none. Starts it received after the report came over this connection."""
        client = report.client[:_CLIENT_BYTES_MAX]
        held = self._peers.setdefault(peer, Held())
        self._name(peer, held, client, report.connection)
        held.holder = "".join(filter(str.isprintable, report.holder[:_HOLDER_CHARS_MAX])) or held.holder
        held.bound = max(0, report.oldest)
        if held.bound:
            held.newest = newest_start
        self._ended = [
            each for each in self._ended if not client or each.client != client or each.connection >= report.connection
        ]

    def _name(self, peer: Hashable, held: Held, client: bytes, connection: int) -> None:
        if held.client != client:
            self._unname(peer, held)
        held.client, held.connection = client, connection
        if client:
            self._of_client.setdefault(client, {})[peer] = held

    def _unname(self, peer: Hashable, held: Held) -> None:
        same = self._of_client.get(held.client)
        if same is not None:
            same.pop(peer, None)
            if not same:
                del self._of_client[held.client]

    def gone(self, peer: Hashable) -> None:
        """The connection ended. The client may still use the starts it received."""
        held = self._peers.pop(peer, None)
        if held is None:
            return
        self._unname(peer, held)
        if held.bound and not self._reported_later(held):
            self._ended.append(held)
            if len(self._ended) > ENDED_MAX:
                first, second, *rest = self._ended
                merged = Held(min(first.bound, second.bound), max(first.newest, second.newest), holder="ended clients")
                self._ended = [merged, *rest]

    def _reported_later(self, held: Held) -> bool:
        return any(each.connection > held.connection for each in self._of_client.get(held.client, {}).values())

    def held(self) -> dict[Hashable, tuple[int, int]]:
        """(bound, newest) of each live connection that may have open starts."""
        return {peer: (held.bound, held.newest) for peer, held in self._peers.items() if held.bound}

    def lowest(self, old: int) -> Held | None:
        """Return what holds E back most: no open start lies below its bound. Starts up to `old` do not count."""
        self._ended = [held for held in self._ended if held.newest > old]
        lowest: Held | None = None
        for held in (*self._peers.values(), *self._ended):
            if held.bound and held.newest > old and (lowest is None or held.bound < lowest.bound):
                lowest = held
        return lowest
