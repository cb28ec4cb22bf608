"""Begin windows, exhaustively: protocol.md's "Begin without waiting", with everything that can go wrong around it.

Actors: two clients (begin, commit one cell, begin again with or without `not_before`), one job (a start with a
lease, two branches, one table-level commit), a TSO that may crash or lose its lease while its writes are still on
their way, and a second TSO that takes over. Between any two steps anything else may happen.

    TSO     clock: next timestamp         batch: [next, limit) window of starts, then entries (start, commit)
            open batch <- commits         FLYING: its flush may end whenever it likes     LANDED: durable

A rule of the protocol is one `self.keeps("name")`; a mutant is the same model without one rule. What must hold is
checked where it could first be seen to fail (`wrong`), never by asking the rule itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

OPEN, FLYING, LANDED = range(3)
PEEKED, TAKEN, SETTLING, SERVING, EXPIRED, DEAD = range(6)
NO_LARGE, DECIDED, RECORDED, ENTERED, LEADING, ONE_BRANCH, WHOLE, ANSWERED = range(8)
WINDOW = 2

RULES = {
    "oldest_window": "a begin is served from the oldest batch that is not durable, never from a later one",
    "no_step_over": "a window that runs out is waited for, never stepped over",
    "above_low_watermark": "a begin is answered only above LWM",
    "not_before": "a begin is answered only above its not_before",
    "empty_renews": "an empty batch whose window ran out gets a new window at once",
    "waiting_flushes": "a non-empty batch whose window ran out is flushed, full or not",
    "fence_in_batch": "a fence is an entry of its batch: answered only when that batch is durable",
    "fence_closes": "the batch closes behind its fences before a start is taken from its window",
    "in_order": "batches are released in order, however their flushes end",
    "window_first": "a window is reserved below its batch's first commit timestamp",
    "law_2": "committed is said only when the entry is durable",
    "law_4": "W is sent only when every commit decided before E reached it is durable",
    "age_by_starts": "LWM rises by age to a start that was handed out, never past the clock",
    "age_below_lease": "LWM rises by age only below every live lease",
    "eviction_raises": "an eviction from the conflict map raises LWM",
    "eviction_spares_open": "an eviction raises LWM alone: W goes by E, which stays below every open start",
    "lease_holds": "W stays below every live lease",
    "lease_by_sent": "a lease is granted only above the highest W ever sent",
    "large_by_sent": "a table-level commit goes by the highest W ever sent",
    "large_pins": "W stays below a large commit from its decision until its record is gone",
    "large_holds_window": "no start above a large commit before its branches are durable",
    "large_record": "the pending record is durable before the decision's entry",
    "large_reads_epoch": "the leader state is read between the decision's entry and its branches",
    "large_conditional": "the decision's entry is put only where no mark stands",
    "fence_then_read": "a new TSO takes the epoch first and reads leases and pending records after",
    "finish_pending": "a new TSO finishes each pending record before its first reply",
    "ceiling_first": "the ceiling is durable before a timestamp below it is handed out",
    "epoch_before_reply": "the leader state is read after each flush, before its replies",
    "lease_ends_begins": "a TSO whose own lease ran out answers no begin",
    "row_by_epoch": "every write to the leader state is conditional on the epoch",
    "watermark_kept": "a new TSO never publishes a W below the old one",
    "law_9": "an expired lease's row is deleted before a W that passes it is sent",
    "discard_leases": "a new TSO discards leases at or below the old W",
    "start_was_issued": "a TSO refuses a start above every timestamp it issued",
    "low_watermark_at_start": "a new TSO starts with LWM = epoch",
}


class Entry(NamedTuple):
    start: int
    """0: a fence."""
    commit: int


class Batch(NamedTuple):
    next: int
    limit: int
    entries: tuple[Entry, ...] = ()
    stage: int = OPEN


class Server(NamedTuple):
    epoch: int
    clock: int
    ceiling: int
    batches: tuple[Batch, ...]
    mode: int = SERVING
    issued: tuple[int, ...] = ()
    low_watermark: int = 0
    evicted: int = 0
    ended: int = 0
    """E."""
    due: int = 0
    """How many batches from the head must be released before E may be sent as W."""
    sent: int = 0
    sending: int = 0
    fence: int = 0
    last_commit: int = 0
    slot: tuple[str, int] = ("", 0)
    """The conflict map: one entry, so that every second cell evicts."""
    lease: int = 0
    large: int = NO_LARGE
    saw_pending: bool = False


class Row(NamedTuple):
    epoch: int
    ceiling: int
    watermark: int = 0
    lease: int = 0
    pending: bool = False
    horizon: int = 0


class Client(NamedTuple):
    start: int = 0
    asking: bool = False
    acked_before: int = 0
    floor: int = 0


class Job(NamedTuple):
    start: int = 0
    branches: tuple[int, ...] = ()
    leased: bool = False
    commit: int = 0
    may_commit_ids: bool = False
    """LWM had not passed the start when its lease was taken in; a later lease only keeps versions for reading."""
    told: bool = False
    over: bool = False


class World(NamedTuple):
    servers: tuple[Server, ...]
    row: Row
    clients: tuple[Client, ...]
    job: Job = Job()
    table: frozenset[Entry] = frozenset()
    marks: frozenset[int] = frozenset()
    healed: frozenset[int] = frozenset()
    """Starts below H whose cells have their shadow cells: they stay committed without the table."""
    acked: int = 0
    starts: frozenset[int] = frozenset()
    decided: tuple[tuple[str, Entry], ...] = ()
    too_late: frozenset[int] = frozenset()
    """Commits that some start above them, or some W, has passed while they were not durable: never to be told."""
    wrong: str | None = None


Step = tuple[str, World]


@dataclass(frozen=True)
class Model:
    """One bounded universe. `without` names the rule that is taken out; None is the protocol."""

    starts_max: int = 3
    commits_max: int = 2
    clients: int = 2
    flushes_in_flight_max: int = 2
    fences_max: int = 0
    eviction: bool = False
    opens: bool = False
    """Clients tell their open starts, and E follows them."""
    age: bool = False
    watermark: bool = False
    hints: bool = False
    job: bool = False
    failover: bool = False
    sanitising: bool = False
    ceiling_step: int = 100
    without: frozenset[str] = frozenset()

    def keeps(self, rule: str) -> bool:
        assert rule in RULES, rule
        return rule not in self.without

    def first(self) -> World:
        server = self._opened(Server(epoch=0, clock=1, ceiling=self.ceiling_step, batches=()))
        return World((server,), Row(epoch=0, ceiling=self.ceiling_step), (Client(),) * self.clients)

    # ---- what must hold --------------------------------------------------------------------------------

    def violation_of(self, world: World) -> str | None:
        return world.wrong or self._half_a_job(world) or self._broken_lease(world) or self._stuck(world)

    def _half_a_job(self, world: World) -> str | None:
        job = world.job
        if not job.commit or not (job.told or any(start > job.commit for start in world.starts)):
            return None
        parts = {_is_committed(world, start) for start in (job.start, *job.branches)}
        if len(parts) == 2:
            return "half a job is visible"
        if parts == {True} and job.commit in world.too_late:
            return "a start above the job's commit had missed it"
        return "a job was told committed and is not" if job.told and parts == {False} else None

    def _broken_lease(self, world: World) -> str | None:
        job, highest = world.job, world.row.watermark
        if not job.start or highest < job.start:
            return None
        if job.leased and any(s.lease == job.start and self._leads(world, s) for s in world.servers):
            return "W has passed a live lease"
        if any(DECIDED <= s.large <= ANSWERED and self._leads(world, s) for s in world.servers):
            return "W has passed a decided, unfinished large commit"
        return None

    @staticmethod
    def _leads(world: World, server: Server) -> bool:
        return server.mode == SERVING and server.epoch == world.row.epoch

    def _stuck(self, world: World) -> str | None:
        """With no new request and no fault, whoever waits for a begin gets it."""
        if not any(client.asking for client in world.clients):
            return None
        if not any(self._leads(world, server) for server in world.servers):
            return None
        while True:
            if any(label.endswith("begins") for label, _ in self._answers(world)):
                return None
            progress = next(self._progress(world), None)
            if progress is None:
                return "a begin waits for ever"
            world = progress[1]

    # ---- what can happen -------------------------------------------------------------------------------

    def steps(self, world: World) -> Iterator[Step]:
        yield from self._requests(world)
        yield from self._answers(world)
        yield from self._progress(world)
        if self.age:
            yield from self._ageing(world)
        if self.opens:
            yield from self._telling(world)
        if self.watermark:
            yield from self._publishing(world)
        if self.job:
            yield from self._job_steps(world)
        if self.failover:
            yield from self._faults(world)
        if self.sanitising and world.row.watermark > world.row.horizon:
            yield self._sanitises(world)

    def _requests(self, world: World) -> Iterator[Step]:
        waiting = sum(client.asking for client in world.clients)
        for who, client in enumerate(world.clients):
            if client.start:
                for index, server in enumerate(world.servers):
                    if server.mode in (SERVING, EXPIRED):
                        yield from self._commits(world, who, index)
            elif not client.asking and len(world.starts) + waiting < self.starts_max:
                asking = client._replace(asking=True, acked_before=world.acked)
                yield f"client {who} asks to begin", self._with_client(world, who, asking)
                if client.floor and self.hints:
                    plain = asking._replace(floor=0)
                    yield f"client {who} asks, without its hint", self._with_client(world, who, plain)
        for index, server in enumerate(world.servers):
            fences = sum(entry.start == 0 for _, entry in world.decided)
            if server.mode == SERVING and fences < self.fences_max:
                yield from self._fences(world, index)

    def _answers(self, world: World) -> Iterator[Step]:
        for index, server in enumerate(world.servers):
            expired = server.mode == EXPIRED and not self.keeps("lease_ends_begins")
            if server.mode != SERVING and not expired:
                continue
            for who, client in enumerate(world.clients):
                if not client.asking:
                    continue
                taken = self._take(server, client.floor)
                if taken is None:
                    continue
                start, after = taken
                moved = self._handed_out(world, index, start, after, client.acked_before, client.floor)
                begun = Client(start=start)
                yield f"O{index} {start}: client {who} begins", self._with_client(moved, who, begun)

    def _progress(self, world: World) -> Iterator[Step]:
        for index, server in enumerate(world.servers):
            yield from self._flushes(world, index)
            if server.mode in (SERVING, EXPIRED):
                yield from self._releases(world, index)
                yield from self._closes(world, index)
            yield from self._large_steps(world, index)
            if not self._room(server) and server.mode == SERVING:
                yield from self._raises_ceiling(world, index)

    # ---- the windows -----------------------------------------------------------------------------------

    def _opened(self, server: Server) -> Server:
        window = Batch(server.clock, server.clock + WINDOW)
        if self.keeps("window_first"):
            return server._replace(clock=server.clock + WINDOW, batches=(*server.batches, window))
        below_nothing = Batch(server.clock + 1, server.clock + 1 + WINDOW)
        return server._replace(clock=server.clock, batches=(*server.batches, below_nothing))

    def _room(self, server: Server) -> bool:
        """Whether a commit and a new window still fit below the durable ceiling (law 8)."""
        return server.clock + WINDOW + 1 < server.ceiling or not self.keeps("ceiling_first")

    def _is_durable(self, server: Server, batch: Batch) -> bool:
        if batch.stage != LANDED:
            return False
        large = any(entry.commit == server.fence and entry.start for entry in batch.entries)
        return not large or server.large >= WHOLE or not self.keeps("large_holds_window")

    def _take(self, server: Server, not_before: int) -> tuple[int, Server] | None:
        """The begin rule: a start from the window of the oldest batch that is not durable; None is wait."""
        floor = max(
            not_before if self.keeps("not_before") else 0,
            server.low_watermark if self.keeps("above_low_watermark") else 0,
        )
        waiting = [i for i, batch in enumerate(server.batches) if not self._is_durable(server, batch)]
        if not self.keeps("oldest_window"):
            waiting = waiting[-1:]
        for index in waiting:
            batch = server.batches[index]
            if batch.stage == OPEN and _has_fence(batch) and self.keeps("fence_closes"):
                return None
            start = max(batch.next, floor + 1)
            if start < batch.limit:
                return start, _with_batch(server, index, batch._replace(next=start + 1))
            if batch.stage == OPEN and not batch.entries and self.keeps("empty_renews"):
                if not self._room(server):
                    return None
                start = server.clock
                renewed = Batch(start + 1, start + WINDOW)
                return start, _with_batch(server._replace(clock=start + WINDOW), index, renewed)
            if self.keeps("no_step_over"):
                return None
        return None

    def _handed_out(self, world: World, index: int, start: int, after: Server, acked_before: int, floor: int) -> World:
        wrong = world.wrong
        undurable = [entry for entry in _in_flight(world, index) if entry.commit < start]
        if undurable:
            wrong = f"law 3: start {start} while commit {undurable[0].commit} is in flight"
        elif start <= acked_before:
            wrong = f"real time: start {start} asked for after commit {acked_before} was acknowledged"
        elif start in world.starts or any(start == entry.commit for _, entry in world.decided):
            wrong = f"uniqueness: {start} was handed out twice"
        elif start <= after.low_watermark or start <= after.sent:
            wrong = f"doomed: start {start} is not above LWM {after.low_watermark}"
        elif floor and start <= floor:
            wrong = f"doomed: start {start} is not above its not_before {floor}"
        elif any(batch.stage == OPEN and batch.limit - WINDOW <= start < batch.limit and _has_fence(batch)
                 for batch in after.batches):  # fmt: skip
            wrong = f"doomed: start {start} is below a fence that nothing closes"
        others = [e for i in range(len(world.servers)) if i != index for e in _in_flight(world, i)]
        return _with_server(world, index, after._replace(issued=(*after.issued, start)))._replace(
            starts=world.starts | {start},
            too_late=world.too_late | {entry.commit for entry in others if entry.commit < start},
            wrong=wrong,
        )

    # ---- commits and fences ----------------------------------------------------------------------------

    def _commits(self, world: World, who: int, index: int) -> Iterator[Step]:
        server, start = world.servers[index], world.clients[who].start
        if not self._issued(server, start):
            return
        cells = ("x", "y") if self.eviction else ("x",)
        for cell in cells:
            held, latest = server.slot
            obstacle = max(
                server.low_watermark if start <= server.low_watermark else 0,
                server.fence if start < server.fence else 0,
                latest if held == cell and latest > start else 0,
            )
            label = f"O{index} {start}/{cell}"
            if obstacle:
                hint = obstacle if self.hints else 0
                yield f"{label} aborts", self._with_client(world, who, Client(floor=hint))
            elif len(world.decided) < self.commits_max and self._room(server):
                decided = self._decided(world, index, cell, Entry(start, server.clock))
                yield f"{label} commits at {server.clock}", self._with_client(decided, who, Client())

    def _decided(self, world: World, index: int, cell: str, entry: Entry) -> World:
        server = world.servers[index]
        held, latest = server.slot
        low_watermark, evicted, ended = server.low_watermark, server.evicted, server.ended
        batches = (*server.batches[:-1], _appended(server.batches[-1], entry))
        if held not in ("", cell) and self.keeps("eviction_raises") and latest > low_watermark:
            low_watermark = evicted = latest
            if not self.keeps("eviction_spares_open"):
                ended = latest
        wrong = world.wrong
        if entry.commit <= entry.start:
            wrong = f"commit {entry.commit} is not above its start {entry.start}"
        for other_cell, other in world.decided:
            if other_cell == cell and other.commit > entry.start and other.start < entry.commit and other.start:
                wrong = f"lost update: {other} and {entry} overlap on {cell}"
        if any(entry.commit <= start for start in server.issued) and entry.commit in world.starts:
            wrong = f"uniqueness: commit {entry.commit} is a start as well"
        after = server._replace(
            clock=server.clock + 1, batches=batches, slot=(cell, entry.commit), last_commit=entry.commit,
            low_watermark=low_watermark, evicted=evicted, ended=ended,
        )  # fmt: skip
        return _with_server(world, index, after)._replace(decided=(*world.decided, (cell, entry)), wrong=wrong)

    def _fences(self, world: World, index: int) -> Iterator[Step]:
        server = world.servers[index]
        if not self._room(server):
            return
        at = server.clock
        after = server._replace(clock=at + 1, fence=at)
        entry = Entry(0, at)
        acked = world.acked
        if self.keeps("fence_in_batch"):
            batches = (*server.batches[:-1], _appended(server.batches[-1], entry))
            after = after._replace(batches=batches)
        else:
            acked = max(acked, at)
        moved = _with_server(world, index, after)
        yield (
            f"O{index} fence at {at}",
            moved._replace(decided=(*world.decided, ("fence", entry)), acked=acked),
        )

    def _issued(self, server: Server, start: int) -> bool:
        return start < server.clock or not self.keeps("start_was_issued")

    # ---- the flush pipeline ----------------------------------------------------------------------------

    def _can_close(self, server: Server) -> bool:
        return sum(batch.stage == FLYING for batch in server.batches) < self.flushes_in_flight_max

    def _closed(self, server: Server) -> Server:
        flying = server.batches[-1]._replace(stage=FLYING)
        return self._opened(server._replace(batches=(*server.batches[:-1], flying)))

    def _closes(self, world: World, index: int) -> Iterator[Step]:
        server = world.servers[index]
        open_batch = server.batches[-1]
        enough = 1 if self.keeps("waiting_flushes") else 2
        if len(open_batch.entries) >= enough and self._can_close(server) and self._room(server):
            yield f"O{index} closes its batch", _with_server(world, index, self._closed(server))

    def _flushes(self, world: World, index: int) -> Iterator[Step]:
        """A flush ends, at any time, in any order; a dead server's too."""
        server = world.servers[index]
        for at, batch in enumerate(server.batches):
            if batch.stage == FLYING:
                landed = frozenset(e for e in batch.entries if e.start not in (0, world.job.start))
                moved = _with_server(world, index, _with_batch(server, at, batch._replace(stage=LANDED)))
                yield (
                    f"O{index} batch of {[e.commit for e in batch.entries]} lands",
                    moved._replace(table=world.table | landed),
                )

    def _releases(self, world: World, index: int) -> Iterator[Step]:
        server = world.servers[index]
        early = FLYING if not self.keeps("law_2") else LANDED
        for at, batch in enumerate(server.batches):
            is_large = any(e.start and e.start == world.job.start for e in batch.entries)
            if batch.stage >= early and (not is_large or server.large >= WHOLE):
                yield from self._replies(world, index, at)
                return
            if self.keeps("in_order"):
                return

    def _replies(self, world: World, index: int, at: int) -> Iterator[Step]:
        server, batch = world.servers[index], world.servers[index].batches[at]
        if world.row.epoch != server.epoch and self.keeps("epoch_before_reply"):
            yield f"O{index} reads a newer epoch and dies", _with_server(world, index, _died(server))
            return
        wrong, job = world.wrong, world.job
        for entry in batch.entries:
            if entry.commit in world.too_late:
                wrong = f"commit {entry.commit} was told after something above it had missed it"
            elif entry.start and batch.stage != LANDED:
                wrong = f"law 2: commit {entry.commit} was told before it was durable"
            if entry.start and entry.start == job.start:
                job = job._replace(told=True)
        rest = server.batches[:at] + server.batches[at + 1 :]
        if batch.stage != LANDED:
            rest = server.batches
        after = server._replace(batches=rest, due=max(0, server.due - 1))
        if job.told and server.large == WHOLE:
            after = after._replace(large=ANSWERED)
        acked = max([world.acked, *(entry.commit for entry in batch.entries)])
        yield (
            f"O{index} replies {[e.commit for e in batch.entries]}",
            _with_server(world, index, after)._replace(acked=acked, wrong=wrong, job=job),
        )

    def _raises_ceiling(self, world: World, index: int) -> Iterator[Step]:
        server = world.servers[index]
        ceiling = server.ceiling + self.ceiling_step
        if world.row.epoch == server.epoch:
            raised = _with_server(world, index, server._replace(ceiling=ceiling))
            yield f"O{index} ceiling {ceiling}", raised._replace(row=world.row._replace(ceiling=ceiling))
        else:
            yield f"O{index} ceiling refused, dies", _with_server(world, index, _died(server))

    # ---- E by age and by open starts, and W ------------------------------------------------------------

    def _ageing(self, world: World) -> Iterator[Step]:
        for index, server in enumerate(world.servers):
            if server.mode != SERVING:
                continue
            bound = server.lease if server.lease and self.keeps("age_below_lease") else server.clock + 1
            old = server.issued if self.keeps("age_by_starts") else (server.clock,)
            start = max((start for start in old if start < bound), default=0)
            if start > server.ended:
                yield f"O{index} E {start} by age", _with_server(world, index, _ended(server, start))

    def _telling(self, world: World) -> Iterator[Step]:
        for index, server in enumerate(world.servers):
            newest = max(server.issued, default=0)
            start = min([newest, *(client.start - 1 for client in world.clients if client.start)])
            if server.mode == SERVING and start > server.ended:
                yield f"O{index} E {start} by open starts", _with_server(world, index, _ended(server, start))

    def _publishing(self, world: World) -> Iterator[Step]:
        for index, server in enumerate(world.servers):
            target = server.ended
            if server.lease and self.keeps("lease_holds"):
                target = min(target, server.lease - 1)
            if DECIDED <= server.large <= ANSWERED and self.keeps("large_pins"):
                target = min(target, world.job.start - 1)
            durable = server.due == 0 or not self.keeps("law_4")
            if server.mode == SERVING and durable and target > server.sent and not server.sending:
                wrong = world.wrong
                for entry in _in_flight(world, index):
                    if 0 < entry.start <= target and entry.start != world.job.start:
                        wrong = f"law 4: W {target} sent while the commit of {entry.start} is in flight"
                if self.opens and any(0 < client.start <= target for client in world.clients):
                    wrong = f"T16: W {target} passes an open start"
                after = server._replace(sent=target, sending=target)
                yield f"O{index} sends W {target}", _with_server(world, index, after)._replace(wrong=wrong)
            if server.sending:
                yield from self._watermark_lands(world, index)

    def _watermark_lands(self, world: World, index: int) -> Iterator[Step]:
        server = world.servers[index]
        if world.row.epoch == server.epoch or not self.keeps("row_by_epoch"):
            row = world.row._replace(watermark=max(world.row.watermark, server.sending))
            after = _with_server(world, index, server._replace(sending=0))
            yield f"O{index} W {row.watermark} is durable", after._replace(row=row)
        else:
            yield f"O{index} W refused, dies", _with_server(world, index, _died(server)._replace(sending=0))

    # ---- the job: a lease, two branches, one commit of its table ----------------------------------------

    def _job_steps(self, world: World) -> Iterator[Step]:
        job = world.job
        for index, server in enumerate(world.servers):
            if server.mode == SERVING and not job.over and not job.start:
                moved, start = self._taken(world, index)
                if start:
                    yield f"O{index} {start}: the job begins", moved._replace(job=Job(start))
            if server.mode == SERVING and not job.over and job.start and not job.branches:
                moved, first = self._taken(world, index)
                moved, second = self._taken(moved, index)
                if first and second:
                    drawn = job._replace(branches=(first, second))
                    yield f"O{index} {first}, {second}: branches", moved._replace(job=drawn)
            if server.mode in (SERVING, EXPIRED):
                yield from self._leasing(world, index)
                if len(job.branches) == 2 and not job.commit and not job.over:
                    yield from self._job_commits(world, index)

    def _taken(self, world: World, index: int) -> tuple[World, int]:
        taken = self._take(world.servers[index], 0)
        if taken is None:
            return world, 0
        return self._handed_out(world, index, taken[0], taken[1], 0, 0), taken[0]

    def _leasing(self, world: World, index: int) -> Iterator[Step]:
        server, row, job = world.servers[index], world.row, world.job
        leads = row.epoch == server.epoch
        if not self._issued(server, job.start):
            return
        if job.start and not job.leased and not job.over and not server.lease and not row.lease:
            highest = server.sent if self.keeps("lease_by_sent") else row.watermark
            if job.start > highest and job.start > server.epoch:
                granted = _with_server(world, index, server._replace(lease=job.start))
                above = job.start > server.low_watermark
                yield f"O{index} takes the lease in", granted._replace(job=job._replace(may_commit_ids=above))
        if server.lease and not job.leased and not row.lease and leads and not job.over:
            leased = world._replace(row=row._replace(lease=server.lease), job=job._replace(leased=True))
            yield f"O{index} lease durable, granted", leased
        if server.lease and job.leased and leads and server.large == NO_LARGE:
            ended = _with_server(world, index, server._replace(lease=0))
            left = row._replace(lease=0) if self.keeps("law_9") else row
            yield (
                f"O{index} lease expires",
                ended._replace(row=left, job=job._replace(leased=False, over=True)),
            )

    def _job_commits(self, world: World, index: int) -> Iterator[Step]:
        server, job = world.servers[index], world.job
        if not self._issued(server, job.start):
            return
        highest = server.sent if self.keeps("large_by_sent") else world.row.watermark
        history = job.start > server.epoch and server.last_commit < job.start and server.fence < job.start
        aged_out = server.evicted < job.start <= server.low_watermark
        if aged_out and job.may_commit_ids and server.lease == job.start:
            yield f"O{index} refuses it at cell level", world._replace(wrong="age took a live lease's commit")
        if job.start <= highest or not history:
            yield f"O{index} refuses the job", world._replace(job=job._replace(over=True))
        elif len(world.decided) < self.commits_max and self._room(server) and self._can_close(server):
            at = server.clock
            decided = self._decided(world, index, "table", Entry(job.start, at))
            after = decided.servers[index]._replace(large=DECIDED, fence=at, slot=server.slot)
            after = self._closed(after)
            yield (
                f"O{index} the job commits at {at}",
                _with_server(decided, index, after)._replace(job=job._replace(commit=at)),
            )

    def _large_steps(self, world: World, index: int) -> Iterator[Step]:
        server, row, job = world.servers[index], world.row, world.job
        alive, leads = server.mode in (SERVING, EXPIRED), row.epoch == server.epoch
        if server.mode in (SETTLING, SERVING) and server.saw_pending:
            yield from self._settles(world, index)
        if server.large == NO_LARGE or not alive:
            return
        if server.large == DECIDED:
            if not self.keeps("large_record"):
                yield self._enters(world, index)
            elif leads or not self.keeps("row_by_epoch"):
                recorded = _with_server(world, index, server._replace(large=RECORDED))
                yield f"O{index} record durable", recorded._replace(row=row._replace(pending=True))
            else:
                yield f"O{index} record refused, dies", _with_server(world, index, _died(server))
        elif server.large == RECORDED:
            yield self._enters(world, index)
        elif server.large == ENTERED:
            if leads or not self.keeps("large_reads_epoch"):
                yield f"O{index} goes on", _with_server(world, index, server._replace(large=LEADING))
            else:
                yield f"O{index} reads a newer epoch, dies", _with_server(world, index, _died(server))
        elif server.large in (LEADING, ONE_BRANCH):
            branch = job.branches[server.large - LEADING]
            moved = _with_server(world, index, server._replace(large=server.large + 1))
            yield f"O{index} branch {branch} durable", _branch_put(moved, branch, job.commit)
        elif server.large == ANSWERED and leads:
            done = _with_server(world, index, server._replace(large=NO_LARGE, lease=0))
            yield (
                f"O{index} record and lease removed",
                done._replace(row=row._replace(pending=False, lease=0), job=job._replace(leased=False, over=True)),
            )

    def _enters(self, world: World, index: int) -> Step:
        server, job = world.servers[index], world.job
        if job.start in world.marks and self.keeps("large_conditional"):
            return f"O{index} the decision is refused by a mark, dies", _with_server(world, index, _died(server))
        entered = _with_server(world, index, server._replace(large=ENTERED))
        entry = Entry(job.start, job.commit)
        # A plain put beside a mark is what a store without conditions does; this table lets the later win.
        return f"O{index} decision durable", entered._replace(
            table=world.table | {entry}, marks=world.marks - {job.start}
        )

    # ---- crash, restart, fail-over ----------------------------------------------------------------------

    def _faults(self, world: World) -> Iterator[Step]:
        server = world.servers[0]
        if server.mode in (SERVING, EXPIRED):
            yield "O0 crashes", _with_server(world, 0, _died(server))
        if server.mode == SERVING:
            yield "O0 lease runs out", _with_server(world, 0, server._replace(mode=EXPIRED))
        if server.mode in (EXPIRED, DEAD) and len(world.servers) == 1:
            yield from self._takes_over(world)
        if len(world.servers) == 2:
            yield from self._starts_up(world)

    def _takes_over(self, world: World) -> Iterator[Step]:
        epoch = world.row.ceiling
        ceiling = epoch + self.ceiling_step
        low_watermark = epoch if self.keeps("low_watermark_at_start") else world.row.watermark
        # Starting above the old ceiling is what makes it a fence for timestamps.
        server = self._opened(
            Server(
                epoch,
                epoch + 1,
                ceiling,
                (),
                TAKEN,
                low_watermark=low_watermark,
                evicted=low_watermark,
                ended=low_watermark,
            )
        )
        row = world.row._replace(epoch=epoch, ceiling=ceiling)
        if self.keeps("fence_then_read"):
            yield "O1 takes the epoch", world._replace(servers=(*world.servers, server), row=row)
        else:
            peeked = self._read(world.row, server._replace(mode=PEEKED))
            yield "O1 reads the row", world._replace(servers=(*world.servers, peeked))

    def _starts_up(self, world: World) -> Iterator[Step]:
        server, row = world.servers[1], world.row
        if server.mode == PEEKED:
            taken = row._replace(epoch=server.epoch, ceiling=server.ceiling)
            moved = _with_server(world, 1, server._replace(mode=SETTLING))
            yield "O1 takes the epoch", moved._replace(row=taken)
        elif server.mode == TAKEN:
            read = self._read(row, server._replace(mode=SETTLING))
            job = world.job._replace(leased=True) if read.lease else world.job
            yield "O1 reads the row", _with_server(world, 1, read)._replace(job=job)
        elif server.mode == SETTLING and not (server.saw_pending and self.keeps("finish_pending")):
            yield from self._serves(world, server.epoch)
            if self.sanitising and world.job.branches:
                # Some other job's lease lies just above the first branch.
                yield from self._serves(world, world.job.branches[0])

    def _serves(self, world: World, other_leases: int) -> Iterator[Step]:
        server, row = world.servers[1], world.row
        at_start = min(other_leases, server.lease - 1) if server.lease else other_leases
        watermark = max(row.watermark, at_start) if self.keeps("watermark_kept") else at_start
        wrong = world.wrong
        if watermark < row.watermark:
            wrong = f"W went back from {row.watermark} to {watermark}"
        passed = {e.commit for e in _in_flight(world, 0) if e.start <= watermark}
        moved = _with_server(world, 1, server._replace(mode=SERVING, sent=watermark))
        yield (
            "O1 serves",
            moved._replace(row=row._replace(watermark=watermark), too_late=world.too_late | passed, wrong=wrong),
        )

    def _read(self, row: Row, server: Server) -> Server:
        passed = row.lease <= row.watermark and self.keeps("discard_leases")
        lease = 0 if passed else row.lease
        return server._replace(saw_pending=row.pending, lease=lease, sent=row.watermark)

    def _settles(self, world: World, index: int) -> Iterator[Step]:
        server, job = world.servers[index], world.job
        entry = Entry(job.start, job.commit)
        committed = entry in world.table and job.start not in world.marks
        for branch in (job.start, *job.branches):
            if committed and Entry(branch, job.commit) not in world.table:
                yield f"O{index} finishes branch {branch}", _branch_put(world, branch, job.commit)
                return
            if not committed and branch not in world.marks:
                yield f"O{index} seals {branch}", world._replace(marks=world.marks | {branch})
                return
        done = _with_server(world, index, server._replace(saw_pending=False, lease=0))
        row = world.row._replace(pending=False, lease=0)
        yield (
            f"O{index} record removed",
            done._replace(row=row, job=job._replace(over=True, leased=False)),
        )

    def _sanitises(self, world: World) -> Step:
        """Compaction healed or deleted everything up to W, H is W, the table forgets what lies below it."""
        horizon = world.row.watermark
        parts = (world.job.start, *world.job.branches)
        healed = {start for start in parts if _is_committed(world, start) and start < horizon}
        return f"H {horizon}", world._replace(
            row=world.row._replace(horizon=horizon),
            table=frozenset(entry for entry in world.table if entry.start >= horizon),
            marks=frozenset(start for start in world.marks if start >= horizon),
            healed=world.healed | healed,
        )

    @staticmethod
    def _with_client(world: World, who: int, client: Client) -> World:
        clients = (*world.clients[:who], client, *world.clients[who + 1 :])
        return world._replace(clients=clients)


def _with_server(world: World, index: int, server: Server) -> World:
    return world._replace(servers=(*world.servers[:index], server, *world.servers[index + 1 :]))


def _with_batch(server: Server, index: int, batch: Batch) -> Server:
    return server._replace(batches=(*server.batches[:index], batch, *server.batches[index + 1 :]))


def _appended(batch: Batch, entry: Entry) -> Batch:
    return batch._replace(entries=(*batch.entries, entry))


def _ended(server: Server, start: int) -> Server:
    """E rises, and LWM with it."""
    low_watermark = max(server.low_watermark, start)
    return server._replace(low_watermark=low_watermark, ended=start, due=_last_filled(server.batches))


def _last_filled(batches: tuple[Batch, ...]) -> int:
    """How many batches from the head hold everything decided so far."""
    return max((i + 1 for i, batch in enumerate(batches) if batch.entries), default=0)


def _in_flight(world: World, index: int) -> list[Entry]:
    """What this server decided and the table does not yet hold whole; fences are entries too."""
    server, job = world.servers[index], world.job
    found = []
    for batch in server.batches:
        for entry in batch.entries:
            if entry.start == 0:
                is_durable = batch.stage == LANDED
            elif entry.start == job.start:
                parts = (entry.start, *job.branches)
                is_durable = all(Entry(part, entry.commit) in world.table or part in world.healed for part in parts)
            else:
                is_durable = batch.stage == LANDED
            if not is_durable:
                found.append(entry)
    return found


def _has_fence(batch: Batch) -> bool:
    return any(entry.start == 0 for entry in batch.entries)


def _is_committed(world: World, start: int) -> bool:
    if start < world.row.horizon:
        return start in world.healed
    return Entry(start, world.job.commit) in world.table and start not in world.marks


def _died(server: Server) -> Server:
    return server._replace(mode=DEAD)


def _branch_put(world: World, branch: int, commit: int) -> World:
    """The entry replaces a mark: put commit, delete mark, one mutation."""
    return world._replace(table=world.table | {Entry(branch, commit)}, marks=world.marks - {branch})
