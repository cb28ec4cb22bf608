"""Directed schedules: the interleavings of hazards.md, told step by step, for rules that chance rarely meets.

A schedule moves tasks and calls by name where chance would pick. `run_directed` plays one on a build; it must be
quiet on the unpatched one and complain where its rule was taken out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from conformance import put_entry, remove_entry
from pyomid.errors import Misuse, OmidError
from pyomid.omid.oracle import instructions as ins
from pyomid.omid.wire import messages as req
from pyomid.protocol import effects
from pyomid.protocol.hashing import table_id
from pyomid.types import (
    CellVersion,
    CommitRequest,
    LeaderStateChanges,
    LifeOf,
    RowWrite,
    ShadowWrite,
    TableInfo,
    TableState,
    WriteSetLevel,
)
from simulation import actors
from simulation.actors import COLUMNS, FAMILY, Client, Plan, Tx, World
from simulation.build import Build
from simulation.oracle import Host
from simulation.runs import judge
from simulation.universe import Call, Choices, Move, Process, Stuck, Task

X, Y = COLUMNS
R0, R1, R2 = actors.ROWS[:3]
STEPS_MAX: Final = 5_000
FOREVER_S: Final = 1e12

SETTINGS: Final = {
    "conflict_map_entries": 64,
    "window_starts": 8,
    "max_transaction_age_s": 2.0,
    "lease_seconds": 1_000.0,
    "watermark_interval_s": 0.0,
    "tables_interval_s": 1e9,
    "commit_retry_s": actors.RETRY_BOUND_S,
    "ceiling_step": 1_000_000,
    "ceiling_renew_remaining": 100_000,
    "write_set_fraction_max": 1.0,
}

SCHEDULES: Final[dict[str, Callable[[Build], None]]] = {}


def _schedule(play: Callable[[Build], None]) -> Callable[[Build], None]:
    SCHEDULES[play.__name__] = play
    return play


class Schedule:
    """A world in which only what is called by name moves."""

    def __init__(
        self,
        build: Build,
        *,
        plain_puts: bool = False,
        settled_reads: bool = False,
        wall_skew_s: float | None = None,
        **settings: Any,
    ) -> None:
        """`wall_skew_s`: how far the TSOs' wall clocks are off; None: they have none, and count timestamps from 0."""
        if wall_skew_s is not None:
            settings = {"ceiling_step": 1_000_000_000, "ceiling_renew_remaining": 500_000_000, **settings}
        plan = Plan(
            plain_puts=plain_puts,
            settled_reads=settled_reads,
            settings={**SETTINGS, **settings},
            wall_skew_s=(wall_skew_s,),
        )
        self.world = World(build, Choices(1), plan)
        self.universe = self.world.universe
        self.universe.time_flows = False
        self._held: list[Callable[[Call], bool]] = []
        self.first = self.lead()

    # ------------------------------------------------------------ TSOs

    def lead(self) -> Host:
        """A new TSO, until it serves."""
        host = self.world.start_tso()
        self.until(lambda: host.serving or not host.process.alive, [])
        if not host.serving:
            raise Stuck(f"{host.process.name} does not lead")
        return host

    def kill(self, host: Host) -> None:
        self.universe.kill(host.process)

    def fail_over(self) -> Host:
        """The TSO dies, another leads."""
        self.kill(self.world.hosts.living[-1])
        return self.lead()

    # ------------------------------------------------------------ clients

    def client(self, name: str) -> Client:
        return self.world.client(name)

    def do(self, client: Client, steps: Any) -> Any:
        """All of it, with everything in the background that it starts; its result, or its error."""
        task = self.start(client, steps)
        return self.finish(task)

    def start(self, client: Client, steps: Any) -> Task:
        return client.spawn("", steps)

    def finish(self, task: Task) -> Any:
        self.until(lambda: task.finished or not task.process.alive, [task.process])
        if task.failure is not None:
            raise task.failure
        return task.result

    def can_finish(self, task: Task) -> bool:
        """Moves it as far as it gets while others stand still."""
        try:
            self.until(lambda: task.finished, [task.process])
        except Stuck:
            return False
        return True

    def finish_all(self, client: Client) -> None:
        """Its background too: completion, heals."""

        def idle() -> bool:
            tasks = any(task.process is client.process for task in self.universe.tasks)
            calls = any(call.process is client.process and not call.zombie for call in self.universe.calls)
            return not tasks and not calls

        self.until(idle, [client.process])

    def until_call(self, task: Task, kind: type, **wanted: Any) -> Call:
        """Moves the task until it has sent such an effect or request; nothing of it has taken effect then."""

        def found() -> Call | None:
            call = task.call
            if call is None or not isinstance(call.effect, kind) or not call.parts:
                return None
            return call if all(getattr(call.effect, name) == value for name, value in wanted.items()) else None

        self.until(lambda: found() is not None, [task.process])
        call = found()
        assert call is not None
        return call

    # ------------------------------------------------------------ calls

    def hold(self, kind: type, where: Callable[[Any], bool] = lambda effect: True) -> Callable[[], None]:
        """From now on such calls of anybody do not move; the result lets them go again."""

        def holds(call: Call) -> bool:
            return isinstance(call.effect, kind) and where(call.effect)

        self._held.append(holds)
        return lambda: self._held.remove(holds)

    def sent(self, kind: type, *, zombie: bool = False) -> Call:
        """The oldest such call under way."""
        for call in self.universe.calls:
            if isinstance(call.effect, kind) and call.zombie == zombie:
                return call
        raise Stuck(f"no {kind.__name__} is under way")

    def is_sent(self, kind: type) -> bool:
        return any(isinstance(call.effect, kind) for call in self.universe.calls)

    def land(self, call: Call) -> None:
        """All parts of the call take effect now."""
        while call.parts:
            self.universe.make(("apply", call))

    # ------------------------------------------------------------ moves

    def until(self, goal: Callable[[], bool], who: Iterable[Process]) -> None:
        """Moves these processes and all TSOs until the goal is reached."""
        processes = list(who)

        def allowed(move: Move) -> bool:
            kind, what = move
            if kind in ("kill", "stop", "continue", "forget"):
                return False
            if isinstance(what, Call) and self.is_held(what):
                return False
            return what.process in processes or what.process.name.startswith("O")

        for _ in range(STEPS_MAX):
            if goal():
                return
            if not self.universe.step(allowed):
                break
        if not goal():
            raise Stuck("the schedule does not reach its goal")

    def pass_time(self, seconds: float) -> None:
        """The TSOs live through it in small steps."""
        until_s = self.universe.now_s + seconds
        while self.universe.now_s < until_s:
            self.universe.now_s += 0.2
            self.settle_tsos()

    def settle_tsos(self) -> None:
        """TSOs move until they wait for time, for a client, or for a call that is held."""
        for _ in range(STEPS_MAX):
            found, _ = self.universe.moves(self._is_of_a_tso)
            if not found:
                return
            self.universe.make(found[0])
        raise Stuck("the TSOs do not come to rest")

    def _is_of_a_tso(self, move: Move) -> bool:
        _, what = move
        if isinstance(what, Process) or (isinstance(what, Call) and self.is_held(what)):
            return False
        process: Process = what.process
        return process.name.startswith("O")

    def is_held(self, call: Call) -> bool:
        return call.zombie or any(holds(call) for holds in self._held)

    def judge(self) -> None:
        judge(self.world)

    def read_and_judge(self, client: Client) -> None:
        """A new transaction of this client reads the row of T."""
        reader = self.do(client, begin(client))
        self.do(client, reader.get("a", R0))
        self.judge()


# ---------------------------------------------------------------- small transactions


def put(client: Client, table: str, row: bytes, *columns: Any, delete: bool = False) -> Any:
    """begin, write, commit."""
    tx = yield from client.begin()
    yield from tx.write(table, {row: dict.fromkeys(columns or (X,), not delete)})
    yield from tx.commit()
    return tx


def begin(client: Client, *, lease: bool = False) -> Any:
    tx = yield from client.begin()
    if lease:
        yield from tx.lease()
    return tx


def written(client: Client, table: str, row: bytes) -> Any:
    """begin and write, no commit yet."""
    tx = yield from client.begin()
    yield from tx.write(table, {row: {X: True}})
    return tx


def with_its_flush_held(schedule: Schedule, client: Client, commit: Any) -> tuple[Any, Callable[[], None]]:
    """The commit's task, decided and on its way to the commit table; and what lets it land there."""
    release = schedule.hold(ins.Flush)
    committing = schedule.start(client, commit)
    schedule.until(lambda: schedule.is_sent(ins.Flush), [client.process])
    return committing, release


def compact(schedule: Schedule, name: str = "K") -> None:
    client = schedule.client(name)
    schedule.do(client, actors.compact_all(client, lazy=False))


def sanitise(schedule: Schedule, name: str = "Z") -> None:
    schedule.pass_time(actors.RETRY_BOUND_S + 1.0)
    client = schedule.client(name)
    schedule.do(client, actors.sanitise(client))


def ignoring(steps: Any) -> Any:
    """A client that lives with any error of the tree."""
    try:
        return (yield from steps)
    except OmidError:
        return None


# ---------------------------------------------------------------- reading: R1 … R7


@_schedule
def a_scan_racing_completion_sees_both_cells(build: Build) -> None:
    """R1. x and y of one commit; T completes between R's fetch and R's look-up."""
    s = Schedule(build)
    t, r = s.client("T"), s.client("R")
    release = s.hold(effects.WriteShadowCells)
    s.do(t, put(t, "a", R0, X, Y))
    tx = s.do(r, begin(r))
    reading = s.start(r, tx.scan("a"))
    s.until_call(reading, effects.LookupThenWatermarks)
    release()
    s.finish_all(t)
    s.finish(reading)
    s.do(r, tx.scan("a"))
    s.judge()


@_schedule
def a_start_that_was_sealed_is_never_decided(build: Build) -> None:
    """R2. R seals T through the TSO, then T's commit request arrives; puts are not conditional."""
    s = Schedule(build, plain_puts=True)
    t, r = s.client("T"), s.client("R")
    tx = s.do(t, written(t, "a", R0))
    s.do(r, r.ask(req.Seal((tx.start_ts,))))
    s.do(t, tx.commit())
    s.read_and_judge(r)


@_schedule
def a_mark_placed_by_another_hand_wins(build: Build) -> None:
    """R2. A Java client fences T's start in the commit table while T's entry is on its way."""
    s = Schedule(build)
    t, r = s.client("T"), s.client("R")
    tx = s.do(t, written(t, "a", R0))
    committing, release = with_its_flush_held(s, t, tx.commit())
    assert s.world.disk.commits.seal(tx.start_ts).placed
    release()
    s.finish(committing)
    s.read_and_judge(r)


@_schedule
def an_old_reader_that_seals_after_completion(build: Build) -> None:
    """R3. R misses T, T's flush outlives its TSO, T learns it from the next and completes; then R's seal is placed."""
    s = Schedule(build)
    t, r = s.client("T"), s.client("R")
    tx = s.do(t, written(t, "a", R0))
    committing, _ = with_its_flush_held(s, t, tx.commit())
    s.fail_over()
    reader = s.do(r, begin(r))
    reading = s.start(r, reader.get("a", R0))
    s.until_call(reading, req.Seal)
    s.land(s.sent(ins.Flush, zombie=True))
    s.finish(committing)
    s.finish_all(t)
    s.settle_tsos()
    s.finish(reading)
    s.judge()


def _outlived_by_its_flush(s: Schedule, t: Client) -> tuple[Tx, Task]:
    """T's flush is on its way when its TSO dies, and the next one leads."""
    tx = s.do(t, written(t, "a", R0))
    committing, release = with_its_flush_held(s, t, ignoring(tx.commit()))
    s.fail_over()
    release()
    return tx, committing


def _below_h_before_its_flush_lands(s: Schedule, t: Client) -> tuple[Tx, Task]:
    """The same, and H has passed T."""
    tx, committing = _outlived_by_its_flush(s, t)
    _pass_by(s, tx)
    return tx, committing


def _pass_by(s: Schedule, tx: Tx) -> None:
    """What is left of T is cleaned, and H passes it."""
    compact(s)
    sanitise(s)
    if s.world.disk.leader_state.read().horizon <= tx.start_ts:
        raise Stuck("the horizon did not pass T")


def _look_up(s: Schedule, tx: Tx) -> Task:
    """The client of T, started again, asks for T's outcome without the TSO."""
    again = s.client("T again")
    own = {"a": tuple(tx.written["a"])}
    return s.start(again, ignoring(again.run(s.world.build.commit.find_outcome(tx.start_ts, (), own))))


def _finish_look_up(s: Schedule, tx: Tx, asking: Task) -> None:
    if (outcome := s.finish(asking)) is not None:
        s.world.truth.outcome_told(tx.start_ts, outcome.commit_ts)


@_schedule
def a_zombie_flush_below_h_is_not_believed(build: Build) -> None:
    """R4, T7. It lands when H has passed T, its mark is gone and its cells are dropped; then T asks again."""
    s = Schedule(build)
    t = s.client("T")
    _, committing = _below_h_before_its_flush_lands(s, t)
    s.land(s.sent(ins.Flush, zombie=True))
    s.finish(committing)
    s.judge()


@_schedule
def a_retry_that_arrives_below_h_is_not_answered(build: Build) -> None:
    """T7. T asks the new TSO again; the request arrives when H has passed T and the old flush has landed."""
    s = Schedule(build)
    t = s.client("T")
    tx, committing = _outlived_by_its_flush(s, t)
    late = s.until_call(committing, CommitRequest, is_retry=True)
    _pass_by(s, tx)
    s.land(s.sent(ins.Flush, zombie=True))
    s.land(late)
    s.finish(committing)
    s.judge()


@_schedule
def a_lost_answer_below_h_is_unknown(build: Build) -> None:
    """R4. The same, and T cannot reach the TSO: it looks into the commit table itself."""
    s = Schedule(build)
    t = s.client("T")
    tx, committing = _below_h_before_its_flush_lands(s, t)
    s.universe.kill(t.process)
    assert not committing.finished
    s.land(s.sent(ins.Flush, zombie=True))
    _finish_look_up(s, tx, _look_up(s, tx))


@_schedule
def a_cell_that_lands_late_below_h_is_not_visible(build: Build) -> None:
    """R4. Entry and cell of T both land below H: only a shadow cell counts there."""
    s = Schedule(build)
    t, r = s.client("T"), s.client("R")
    tx, _ = _below_h_before_its_flush_lands(s, t)
    early = s.do(r, begin(r))
    s.do(r, early.get("a", R0))
    s.universe.kill(t.process)
    s.land(s.sent(ins.Flush, zombie=True))
    s.world.disk.store.write_cells("a", tx.start_ts, [RowWrite(R0, ((X, b"late"),))])
    s.do(r, early.get("a", R0))
    s.judge()


@_schedule
def an_entry_that_lands_below_h_during_a_read_is_not_believed(build: Build) -> None:
    """R4. R fetched T's cell and is about to look T up; H passes T, then the flush of T's dead TSO lands."""
    s = Schedule(build)
    t, r = s.client("T"), s.client("R")
    tx, committing = _outlived_by_its_flush(s, t)
    reader = s.do(r, begin(r, lease=True))
    reading = s.start(r, reader.get("a", R0))
    s.until_call(reading, effects.LookupThenWatermarks)
    _pass_by(s, tx)
    s.land(s.sent(ins.Flush, zombie=True))
    s.finish(reading)
    s.finish(committing)
    s.judge()


@_schedule
def h_may_pass_between_the_look_up_and_its_read(build: Build) -> None:
    """R4. R found T's entry; before it reads H, T completes and H passes it: the shadow cell decides."""
    s = Schedule(build)
    t, r = s.client("T"), s.client("R")
    release = s.hold(effects.WriteShadowCells)
    tx = s.do(t, put(t, "a", R0))
    reader = s.do(r, begin(r, lease=True))
    reading = s.start(r, reader.get("a", R0))
    s.until_call(reading, effects.LookupThenWatermarks)
    s.until_call(reading, effects.ReadWatermarks)
    release()
    s.finish_all(t)
    s.pass_time(10.0)
    _pass_by(s, tx)
    s.finish(reading)
    s.judge()


@_schedule
def a_lost_answer_below_h_that_passes_meanwhile_is_unknown(build: Build) -> None:
    """R4. T, told nothing, is about to look itself up; H passes it, then the flush of its dead TSO lands."""
    s = Schedule(build)
    t = s.client("T")
    tx, _ = _outlived_by_its_flush(s, t)
    s.universe.kill(t.process)
    asking = _look_up(s, tx)
    s.until_call(asking, effects.LookupThenWatermarks)
    _pass_by(s, tx)
    s.land(s.sent(ins.Flush, zombie=True))
    _finish_look_up(s, tx, asking)


def _with_an_entry_to_sanitise(build: Build) -> Schedule:
    """T committed and never completed; the compactor has been there."""
    s = Schedule(build)
    t = s.client("T")
    s.hold(effects.WriteShadowCells)
    s.do(t, put(t, "a", R0))
    s.universe.kill(t.process)
    s.pass_time(10.0)
    compact(s)
    return s


@_schedule
def h_is_durable_before_the_first_entry_goes(build: Build) -> None:
    """R4. Two sanitisers (or one that asks again): the second must not delete while the first's H is on its way."""
    s = _with_an_entry_to_sanitise(build)
    watermark = s.world.disk.leader_state.read().watermark
    release = s.hold(ins.UpdateLeaderState, lambda operation: operation.changes.horizon is not None)
    z1, z2 = s.client("Z1"), s.client("Z2")
    first = s.start(z1, z1.ask(req.AdvanceHorizon(watermark)))
    s.until(lambda: s.is_sent(ins.UpdateLeaderState), [z1.process])
    second = s.start(z2, z2.ask(req.AdvanceHorizon(watermark)))
    s.land(s.until_call(second, req.AdvanceHorizon))
    s.settle_tsos()
    release()
    s.finish(first)
    s.finish(second)


@_schedule
def what_a_dead_tso_left_below_h_goes_the_next_time(build: Build) -> None:
    """R4. The TSO ends when H is durable and nothing below it has gone; W stands still when somebody asks again."""
    s = _with_an_entry_to_sanitise(build)
    s.pass_time(actors.RETRY_BOUND_S + 1.0)
    release = s.hold(ins.DeleteBelow)
    z = s.client("Z")
    s.start(z, actors.sanitise(z))
    s.until(lambda: s.is_sent(ins.DeleteBelow), [z.process])
    s.fail_over()
    s.universe.kill(z.process)
    s.universe.make(("forget", s.sent(ins.DeleteBelow, zombie=True)))
    release()
    sanitise(s)
    left = s.world.truth.what_is_left()
    if left:
        raise Stuck("; ".join(left))


@_schedule
def a_branch_that_another_hand_sealed_is_kept(build: Build) -> None:
    """R8. R finds J's branch sealed; before it reads W, J commits, which replaces the seal, and W passes the branch."""
    s = Schedule(build)
    j, r = s.client("J"), s.client("R")
    tx = s.do(j, _job(j, (R0,)))
    assert s.world.disk.commits.seal(tx.branches[0]).placed
    reader = s.do(r, begin(r, lease=True))
    reading = s.start(r, reader.get("a", R0))
    s.until_call(reading, effects.LookupThenWatermarks)
    s.until_call(reading, effects.ReadWatermarks)
    assert s.do(j, tx.commit())
    s.pass_time(10.0)
    if s.world.disk.leader_state.read().watermark < tx.branches[0]:
        raise Stuck("W did not pass the branch")
    s.finish(reading)
    s.finish_all(r)
    later = s.do(r, begin(r))
    s.do(r, later.get("a", R0))
    s.judge()


@_schedule
def a_deleted_row_stays_deleted_when_both_vanish(build: Build) -> None:
    """R5. K drops value and tombstone together, between R's fetch and R's look-up."""
    s = Schedule(build)
    t, r = s.client("T"), s.client("R")
    s.do(t, put(t, "a", R0))
    s.finish_all(t)
    release = s.hold(effects.WriteShadowCells)
    s.do(t, put(t, "a", R0, delete=True))
    reader = s.do(r, begin(r, lease=True))
    reading = s.start(r, reader.get("a", R0))
    s.until_call(reading, effects.LookupThenWatermarks)
    release()
    s.finish_all(t)
    s.pass_time(10.0)
    compact(s)
    s.finish(reading)
    s.judge()


@_schedule
def a_miss_is_not_remembered(build: Build) -> None:
    """R6. One process reads before and after T's commit."""
    s = Schedule(build)
    t, r = s.client("T"), s.client("R")
    tx = s.do(t, written(t, "a", R0))
    first = s.do(r, begin(r))
    s.do(r, first.get("a", R0))
    s.hold(effects.WriteShadowCells)
    s.do(t, tx.commit())
    second = s.do(r, begin(r))
    s.do(r, second.get("a", R0))
    s.judge()


@_schedule
def a_reader_below_w_is_told(build: Build) -> None:
    """R7. R without a lease reads on after compaction passed it."""
    _reads_below_w(Schedule(build))


@_schedule
def a_reader_below_w_of_the_same_state_is_told(build: Build) -> None:
    """R7. The same over a store that reads rows and W from one state."""
    _reads_below_w(Schedule(build, settled_reads=True))


def _reads_below_w(s: Schedule) -> None:
    t, r = s.client("T"), s.client("R")
    s.do(t, put(t, "a", R0))
    s.finish_all(t)
    reader = s.do(r, begin(r))
    s.do(r, reader.get("a", R0))
    s.do(t, put(t, "a", R0))
    s.finish_all(t)
    s.pass_time(10.0)
    compact(s)
    s.do(r, ignoring(reader.get("a", R0)))
    s.judge()


@_schedule
def a_settled_read_during_a_commit_sees_all_of_it_or_nothing(build: Build) -> None:
    """R1, R4. T committed two rows; R reads one before T's shadow cells are there, the other afterwards."""
    s = Schedule(build, settled_reads=True)
    t, r = s.client("T"), s.client("R")
    s.do(t, put(t, "a", R0))
    s.do(t, put(t, "a", R1))
    s.finish_all(t)
    tx = s.do(t, written(t, "a", R0))
    s.do(t, tx.write("a", {R1: {X: True}}))
    release = s.hold(effects.WriteShadowCells)
    s.do(t, tx.commit())
    reader = s.do(r, begin(r))
    s.do(r, reader.get("a", R0))
    release()
    s.finish_all(t)
    s.do(r, reader.get("a", R1))
    s.judge()


@_schedule
def a_scan_of_a_table_that_is_made_anew_is_refused(build: Build) -> None:
    """R10. R has opened the table and sent its first fetch; before that lands the table is dropped and made again."""
    s = Schedule(build)
    t, r = s.client("T"), s.client("R")
    s.do(t, put(t, "a", R0))
    s.finish_all(t)
    reader = s.do(r, begin(r))
    scanning = s.start(r, ignoring(reader.scan("a")))
    s.until_call(scanning, effects.ReadRange)
    make_anew(s, "a")
    s.finish(scanning)
    s.judge()


@_schedule
def a_get_from_a_table_that_is_made_anew_is_refused(build: Build) -> None:
    """R10. R reads a row before and after, over a store that reads rows and entry from one state."""
    s = Schedule(build, settled_reads=True)
    t, r = s.client("T"), s.client("R")
    s.do(t, put(t, "a", R0))
    s.finish_all(t)
    reader = s.do(r, begin(r))
    s.do(r, reader.get("a", R0))
    make_anew(s, "a")
    s.do(r, ignoring(reader.get("a", R0)))
    s.judge()


@_schedule
def a_snapshot_does_not_take_a_later_table_for_its_own(build: Build) -> None:
    """R10. R begins, the table is dropped and created again, then R opens it: it is empty, but R knows another."""
    s = Schedule(build)
    t, r = s.client("T"), s.client("R")
    s.do(t, put(t, "a", R0))
    s.finish_all(t)
    reader = s.do(r, begin(r))
    make_anew(s, "a")
    s.do(r, ignoring(reader.get("a", R0)))
    s.judge()


@_schedule
def a_table_is_empty_to_an_older_snapshot_if_no_other_had_its_name(build: Build) -> None:
    """R10. R begins, another table is dropped, a new one is created: R reads it."""
    s = Schedule(build)
    r = s.client("R")
    reader = s.do(r, begin(r))
    make_anew(s, "b")
    create(s, "new")
    if s.do(r, reader.get("new", R0)):
        raise Stuck("R10: a new table has a row")


def make_anew(s: Schedule, table: str) -> None:
    """Drop the table and create it again, as `database.table_admin` does, in one go."""
    disk, client = s.world.disk, s.client("admin")
    dropping = put_entry(disk.catalog, disk.catalog.table(table), TableState.DROPPING)
    fence: req.FenceReply = s.do(client, client.ask(req.Fence(table_id(table.encode()))))
    disk.catalog.note_drop(table, fence.fence_ts)
    disk.store.drop_table(table)
    disk.catalog.remove_entry(dropping)
    create(s, table)


def create(s: Schedule, table: str) -> None:
    client = s.client("admin")
    info = TableInfo(table, (FAMILY,), generation=s.do(client, begin(client)).start_ts)
    s.world.disk.store.create_table(info)
    put_entry(s.world.disk.catalog, info)


# ---------------------------------------------------------------- the TSO: T1 … T15


@_schedule
def a_begin_during_a_held_flush_sees_no_half_commit(build: Build) -> None:
    """T1. R begins while T's flush is on its way, reads before and after it lands."""
    s = Schedule(build)
    t, r = s.client("T"), s.client("R")
    tx = s.do(t, written(t, "a", R0))
    committing, release = with_its_flush_held(s, t, tx.commit())
    reader = s.do(r, begin(r))
    s.do(r, reader.get("a", R0))
    release()
    s.finish(committing)
    s.do(r, reader.get("a", R0))
    s.judge()


@_schedule
def w_waits_for_the_commit_in_flight(build: Build) -> None:
    """T2. LWM passes T by age while T's flush is held; W must not."""
    s = Schedule(build)
    t = s.client("T")
    tx = s.do(t, written(t, "a", R0))
    committing, release = with_its_flush_held(s, t, tx.commit())
    s.pass_time(6.0)
    if s.first.machine.state.oracle.low_watermark < tx.start_ts:
        raise Stuck("LWM did not pass T by age")
    release()
    s.finish(committing)
    s.judge()


@_schedule
def a_commit_in_flight_when_a_quiet_tso_draws_a_start_falls_below_w(build: Build) -> None:
    """T15. T's flush is held while the TSO draws a start for its age; nobody asks for anything afterwards."""
    s = Schedule(build)
    t = s.client("T")
    tx = s.do(t, written(t, "a", R0))
    committing, release = with_its_flush_held(s, t, tx.commit())
    s.pass_time(1.0)
    release()
    s.finish(committing)
    s.pass_time(10.0)
    watermark = s.world.disk.leader_state.read().watermark
    if watermark < committing.result:
        raise Stuck(f"W {watermark} never passes the commit at {committing.result}")
    s.judge()


@_schedule
def a_new_tso_starts_above_the_old_ceiling(build: Build) -> None:
    """T3. Begin, fail over, begin: no timestamp twice, whatever the wall clock says."""
    s = Schedule(build)
    client = s.client("C")
    for _ in range(3):
        for _ in range(20):
            s.do(client, client.ask(req.Begin()))
        s.fail_over()


@_schedule
def no_timestamp_leaves_above_the_ceiling(build: Build) -> None:
    """T3. The ceiling's write is held while many begin; the TSO dies; the next one starts at the durable ceiling."""
    s = Schedule(build, ceiling_step=2_000, ceiling_renew_remaining=1_000, window_starts=1)
    release = s.hold(ins.UpdateLeaderState, lambda operation: operation.changes.ceiling is not None)
    client = s.client("C")

    def many() -> Any:
        for _ in range(100):
            yield from client.ask(req.Begin())

    task = s.start(client, ignoring(many()))
    for _ in range(1_500):
        if task.finished:
            break
        s.universe.step(lambda move: _is_of(s, move, client.process))
    s.kill(s.first)
    s.universe.calls[:] = [call for call in s.universe.calls if not call.zombie]
    release()
    s.universe.kill(client.process)
    s.lead()
    after = s.client("D")
    for _ in range(60):
        s.do(after, after.ask(req.Begin()))


def _is_of(s: Schedule, move: Move, process: Process) -> bool:
    kind, what = move
    held = isinstance(what, Call) and s.is_held(what)
    return kind in ("resume", "apply", "answer") and not held and what.process in (process, s.first.process)


@_schedule
def a_leader_without_its_lease_answers_no_begin(build: Build) -> None:
    """T4. O1 cannot renew its lease, O2 leads and commits T; a begin that reaches O1 is not answered."""
    s = Schedule(build)
    t, r = s.client("T"), s.client("R")
    old = s.first
    s.universe.tasks.remove(next(task for task in s.universe.tasks if task.process is old.process))
    asking = s.start(r, ignoring(begin(r)))
    call = s.until_call(asking, req.Begin)
    while s.world.lock.until_s > s.universe.now_s:
        s.pass_time(0.4)
        old.feed()
    s.lead()
    s.do(t, put(t, "a", R0))
    s.land(call)
    s.finish(asking)
    if asking.result is not None:
        s.do(r, asking.result.get("a", R0))
    s.judge()


@_schedule
def a_flush_that_outlives_its_leader_is_not_acknowledged(build: Build) -> None:
    """T5. O1's clock is wrong and it believes in its lease; O2 tells R "not committed"; then O1's flush lands."""
    s = Schedule(build, plain_puts=True, stall_s_max=FOREVER_S)
    t, r = s.client("T"), s.client("R")
    tx = s.do(t, written(t, "a", R0))
    committing, _ = with_its_flush_held(s, t, ignoring(tx.commit()))
    flush = s.sent(ins.Flush)
    old = s.first
    old.feed(ins.LeaseRenewed(FOREVER_S))
    old.process.stopped = True
    s.universe.now_s += 20.0
    s.lead()
    reader = s.do(r, begin(r))
    s.do(r, reader.get("a", R0))
    old.process.stopped = False
    s.land(flush)
    s.universe.make(("answer", flush))
    s.finish(committing)
    s.do(r, reader.get("a", R0))
    s.judge()


@_schedule
def a_version_of_a_dead_tso_is_sealed(build: Build) -> None:
    """T6. A lease holds W back; R of the new epoch meets T, whose flush has outlived its TSO and lands later."""
    s = Schedule(build)
    t, r, old = s.client("T"), s.client("R"), s.client("L")
    s.do(old, begin(old, lease=True))
    tx = s.do(t, written(t, "a", R0))
    committing, _ = with_its_flush_held(s, t, ignoring(tx.commit()))
    s.fail_over()
    reader = s.do(r, begin(r))
    s.do(r, reader.get("a", R0))
    s.land(s.sent(ins.Flush, zombie=True))
    s.do(r, reader.get("a", R0))
    s.finish(committing)
    s.judge()


@_schedule
def a_retry_that_finds_nothing_is_sealed(build: Build) -> None:
    """T7. T asks O2 again, is told aborted; then O1's flush lands."""
    s = Schedule(build)
    t, r = s.client("T"), s.client("R")
    _, committing = _outlived_by_its_flush(s, t)
    s.finish(committing)
    s.land(s.sent(ins.Flush, zombie=True))
    s.read_and_judge(r)


@_schedule
def a_begin_after_a_fence_lies_above_it(build: Build) -> None:
    """T8. Who begins after a fence was answered must not abort by it."""
    s = Schedule(build)
    t, r = s.client("T"), s.client("R")
    s.do(t, put(t, "a", R0))
    tx = s.do(t, written(t, "a", R1))
    _, release = with_its_flush_held(s, t, ignoring(tx.commit()))
    fencing = s.start(r, r.ask(req.Fence(table_id(b"a"))))
    if not s.can_finish(fencing):
        release()
    reply = s.finish(fencing)
    after = s.do(r, begin(r))
    if after.start_ts < reply.fence_ts:
        raise Stuck(f"T8: begin {after.start_ts} after fence {reply.fence_ts} lies below it")


@_schedule
def the_most_negative_id_is_an_id(build: Build) -> None:
    """T10. −2⁶³ is kept like any other, and conflicts like any other."""
    s = Schedule(build)
    one, two = s.client("T1"), s.client("T2")
    first, second = s.do(one, begin(one)), s.do(two, begin(two))
    ids = (-(1 << 63), (1 << 63) - 1, 0, -1)
    reply = s.do(one, one.ask(CommitRequest(first.start_ts, ids, (table_id(b"a"),))))
    assert reply.committed, reply
    reply = s.do(two, two.ask(CommitRequest(second.start_ts, ids[:1], (table_id(b"a"),))))
    assert not reply.committed, "two overlapping commits on id −2⁶³"


@_schedule
def w_waits_for_an_unfinished_job(build: Build) -> None:
    """T12. LWM passed a job whose lease is lost; D, which is moved with W, did not. So the job, which goes by tables,
    commits, and W is due while its branches' entries are on their way."""
    s = Schedule(build, watermark_interval_s=20.0)
    job, other = s.client("J"), s.client("T")
    s.pass_time(25.0)
    tx = s.do(job, _job(job, (R0, R1)))
    s.first.machine.state.leases.find(tx.start_ts).expires_s = 0.0
    s.pass_time(10.0)
    if (
        s.first.machine.state.oracle.low_watermark <= tx.start_ts
        or s.first.machine.state.watermarks.decided >= tx.start_ts
    ):
        raise Stuck("LWM did not pass the job, or D did")
    release = s.hold(ins.PutBranches)
    committing = s.start(job, tx.commit(WriteSetLevel.TABLE))
    s.until(lambda: s.is_sent(ins.PutBranches), [job.process])
    s.pass_time(25.0)
    compact(s)
    release()
    s.finish(committing)
    reader = s.do(other, begin(other))
    s.do(other, reader.scan("a"))
    s.judge()


@_schedule
def a_lease_is_granted_only_above_the_w_that_was_sent(build: Build) -> None:
    """T12. W is on its way to the leader state when the lease is asked for."""
    s = Schedule(build)
    r = s.client("R")
    reader = s.do(r, begin(r))
    s.do(s.client("other"), begin(s.client("other")))
    release = s.hold(ins.UpdateLeaderState, lambda operation: operation.changes.watermark is not None)
    s.pass_time(10.0)
    if s.first.machine.state.watermarks.sent < reader.start_ts:
        raise Stuck("W was not sent")
    granting = s.start(r, ignoring(reader.lease()))
    s.land(s.until_call(granting, req.GrantLease))
    release()
    s.finish(granting)


# ---------------------------------------------------------------- clients: C3, C4


@_schedule
def rolled_back_is_not_said_without_a_seal(build: Build) -> None:
    """C3. T cannot reach the TSO that decides; its flush is on its way; T looks its outcome up."""
    s = Schedule(build, stall_s_max=FOREVER_S)
    s.first.feed(ins.LeaseRenewed(FOREVER_S))
    t, r = s.client("T"), s.client("R")
    tx = s.do(t, written(t, "a", R0))
    committing, _ = with_its_flush_held(s, t, ignoring(tx.commit()))
    flush = s.sent(ins.Flush)
    s.universe.now_s += actors.RETRY_BOUND_S + 1.0
    call = committing.call
    assert call is not None
    s.universe.make(("lose answer", call))
    s.until(lambda: committing.finished or _asks(committing, req.Seal), [t.process])
    s.land(flush)
    s._held.clear()
    s.finish(committing)
    s.read_and_judge(r)


@_schedule
def a_looked_up_commit_is_seen_by_later_begins(build: Build) -> None:
    """C10. T's entry is durable behind a batch whose flush is slow; T's answer is lost, and T looks itself up."""
    s = Schedule(build, stall_s_max=FOREVER_S, max_transaction_age_s=FOREVER_S)
    s.first.feed(ins.LeaseRenewed(FOREVER_S))
    slow, t = s.client("S"), s.client("T")
    before, tx = s.do(slow, written(slow, "a", R0)), s.do(t, written(t, "a", R1))
    _, release = with_its_flush_held(s, slow, before.commit())
    first = s.sent(ins.Flush).effect
    release()
    release = s.hold(ins.Flush, lambda effect: effect is first)
    _look_up_and_begin(s, t, tx, release)


@_schedule
def a_looked_up_job_is_seen_by_later_begins(build: Build) -> None:
    """C10. T's decision is durable, its branches' entries are on their way; T's answer is lost, T looks itself up."""
    s = Schedule(build, stall_s_max=FOREVER_S, max_transaction_age_s=FOREVER_S)
    s.first.feed(ins.LeaseRenewed(FOREVER_S))
    t = s.client("T")
    tx = s.do(t, _job(t, (R0, R1)))
    _look_up_and_begin(s, t, tx, s.hold(ins.PutBranches))


def _look_up_and_begin(s: Schedule, t: Client, tx: Tx, release: Callable[[], None]) -> None:
    """T commits until its entry is durable, loses every answer, and looks itself up; then R begins."""
    r = s.client("R")
    committing = s.start(t, ignoring(tx.commit()))
    s.until(lambda: tx.start_ts in s.world.truth.commits, [t.process])
    s.settle_tsos()
    s.universe.now_s += actors.RETRY_BOUND_S + 1.0
    call = committing.call
    assert call is not None
    s.universe.make(("lose answer", call))
    s.can_finish(committing)
    reader = s.do(r, begin(r))
    s.do(r, reader.get("a", R1))
    release()
    s.finish(committing)
    if s.world.truth.told.get(tx.start_ts) is None:
        raise Stuck("T was not told that it committed")
    s.judge()


def _asks(task: Task, kind: type) -> bool:
    call = task.call
    return call is not None and isinstance(call.effect, kind)


@_schedule
def an_outcome_without_evidence_is_unknown(build: Build) -> None:
    """C3, C7. T's answer was lost; others overwrite its cell, K drops it, Z takes the entry; then T asks."""
    s = Schedule(build)
    t, other = s.client("T"), s.client("T2")
    tx = s.do(t, written(t, "a", R0))
    committing = s.start(t, ignoring(tx.commit()))
    call = s.until_call(committing, CommitRequest)
    s.land(call)
    s.settle_tsos()
    s.universe.kill(t.process)
    s.do(other, put(other, "a", R0))
    s.finish_all(other)
    s.pass_time(10.0)
    compact(s)
    sanitise(s)
    if s.world.disk.leader_state.read().horizon <= tx.start_ts or tx.start_ts not in s.world.truth.commits:
        raise Stuck("T did not commit, or the horizon did not pass it")
    _finish_look_up(s, tx, _look_up(s, tx))


# ---------------------------------------------------------------- compaction and sanitising: K1 … K7


@_schedule
def a_reader_between_two_commits_keeps_its_version(build: Build) -> None:
    """K1. v1 (c ≤ W), v2 (start ≤ W < c): R between them needs v1."""
    s = Schedule(build)
    t1, t2, r = s.client("T1"), s.client("T2"), s.client("R")
    s.do(t1, put(t1, "a", R0))
    s.finish_all(t1)
    tx = s.do(t2, written(t2, "a", R0))
    reader = s.do(r, begin(r, lease=True))
    s.do(t2, tx.commit())
    s.finish_all(t2)
    s.pass_time(10.0)
    if not tx.start_ts <= s.world.disk.leader_state.read().watermark < reader.start_ts:
        raise Stuck("W does not lie between the start of T2 and R")
    compact(s)
    s.do(r, reader.get("a", R0))
    s.judge()


@_schedule
def a_flush_that_lands_after_compaction_is_refused(build: Build) -> None:
    """K2. K drops T's cells; then T's flush, which has outlived its TSO, lands."""
    s = Schedule(build)
    t, r = s.client("T"), s.client("R")
    _, committing = _outlived_by_its_flush(s, t)
    compact(s)
    s.land(s.sent(ins.Flush, zombie=True))
    s.finish(committing)
    s.read_and_judge(r)


@_schedule
def compaction_racing_completion_loses_nothing(build: Build) -> None:
    """K2. T completes between K's fetch and K's look-up."""
    s = Schedule(build)
    t, r, k = s.client("T"), s.client("R"), s.client("K")
    release = s.hold(effects.WriteShadowCells)
    s.do(t, put(t, "a", R0))
    s.pass_time(10.0)
    compacting = s.start(k, actors.compact_all(k, lazy=False))
    s.until_call(compacting, effects.LookupThenWatermarks)
    release()
    s.finish_all(t)
    s.finish(compacting)
    s.read_and_judge(r)


@_schedule
def compaction_racing_a_late_commit_loses_nothing(build: Build) -> None:
    """K2. K misses T, T's flush outlives its TSO, T learns it from the next and completes; then K's seal is placed."""
    s = Schedule(build)
    t, r, k = s.client("T"), s.client("R"), s.client("K")
    tx = s.do(t, written(t, "a", R0))
    committing, _ = with_its_flush_held(s, t, tx.commit())
    s.fail_over()
    compacting = s.start(k, actors.compact_all(k, lazy=False))
    s.until_call(compacting, req.Seal)
    s.land(s.sent(ins.Flush, zombie=True))
    s.finish(committing)
    s.finish_all(t)
    s.settle_tsos()
    s.finish(compacting)
    s.read_and_judge(r)


@_schedule
def a_tombstone_goes_only_after_what_it_hides(build: Build) -> None:
    """K3. Put, delete, compact: the deleted value does not come back."""
    s = Schedule(build)
    t, r = s.client("T"), s.client("R")
    s.do(t, put(t, "a", R0))
    s.do(t, put(t, "a", R0, delete=True))
    s.finish_all(t)
    s.pass_time(10.0)
    compact(s)
    s.read_and_judge(r)


@_schedule
def a_tombstone_stays_while_it_hides_a_later_commit(build: Build) -> None:
    """K3. Conflict-free writes: value (start 100, commit 400) under a tombstone (start 200, commit 250), W = 300."""
    s = Schedule(build)
    disk, truth = s.world.disk, s.world.truth
    for version, commit_ts, value in ((100, 400, b"old"), (200, 250, None)):
        disk.store.write_cells("a", version, [RowWrite(R0, ((X, value),))])
        truth.commits[version] = commit_ts
        disk.store.write_shadow_cells("a", [ShadowWrite(CellVersion(R0, *X, version), commit_ts)])
    epoch = disk.leader_state.read().epoch
    disk.leader_state.update(epoch, LeaderStateChanges(watermark=300))
    compact(s)
    snapshot = build.reading.Snapshot(1_000, epoch)
    client = s.client("R")
    steps = build.reading.read_rows(LifeOf("a", 1), [R0], None, snapshot, client.cache)
    [row] = s.do(client, client.run(steps))
    if row:
        raise Stuck(f"K3: the deleted value is back: {row}")


@_schedule
def the_record_names_the_w_that_was_gone_by(build: Build) -> None:
    """K4. W moves on while K works; what K records is what it cleaned by."""
    s = Schedule(build)
    t, k = s.client("T"), s.client("K")
    s.pass_time(5.0)
    compacting = s.start(k, actors.compact_all(k, lazy=False))
    s.until_call(compacting, effects.ReadRange)
    s.hold(effects.WriteShadowCells)
    call = s.sent(effects.ReadRange)
    s.land(call)
    s.do(t, put(t, "a", R0))
    s.universe.kill(t.process)
    s.pass_time(10.0)
    s.finish(compacting)
    sanitise(s)


@_schedule
def a_region_without_a_record_holds_back_the_horizon(build: Build) -> None:
    """K5. The table is split; only one region was compacted."""
    s = Schedule(build)
    t, k = s.client("T"), s.client("K")
    s.hold(effects.WriteShadowCells)
    s.do(t, put(t, "a", R2))
    s.universe.kill(t.process)
    s.pass_time(10.0)
    s.world.disk.store.split_region("a", R1)
    for table, region in (("a", s.world.disk.store.regions("a")[0]), ("b", s.world.disk.store.regions("b")[0])):
        steps = build.compaction.compact_region(table, 1, region, k.cache, now_s=s.universe.now_s)
        s.do(k, k.run(steps))
    sanitise(s)


@_schedule
def a_restored_table_starts_from_nothing(build: Build) -> None:
    """K5. A copy from before the healing is put back, under a new generation."""
    s = Schedule(build)
    t = s.client("T")
    s.hold(effects.WriteShadowCells)
    tx = s.do(t, put(t, "a", R0))
    s.universe.kill(t.process)
    s.pass_time(10.0)
    compact(s)
    store = s.world.disk.store
    store.drop_table("a")
    store.create_table(TableInfo("a", (FAMILY,)))
    store.write_cells("a", tx.start_ts, [RowWrite(R0, ((X, b"restored"),))])
    put_entry(s.world.disk.catalog, TableInfo("a", (FAMILY,), generation=2))
    sanitise(s)


@_schedule
def a_table_nobody_registered_stops_the_sanitiser(build: Build) -> None:
    """K6. A Java client commits to a table of its own; its entry is all that knows of it."""
    s = Schedule(build)
    t = s.client("T")
    s.world.disk.store.create_table(TableInfo("java", (FAMILY,)))
    s.hold(effects.WriteShadowCells)
    tx = s.do(t, put(t, "java", R0))
    s.universe.kill(t.process)
    s.pass_time(10.0)
    compact(s)
    sanitise(s)
    if s.world.disk.commits.lookup([tx.start_ts])[0] <= 0:
        raise Stuck("K6: the entry of an unregistered table's commit was sanitised")


def _committed_by_java(s: Schedule) -> Tx:
    """A Java client commits to a table of its own and dies before its shadow cells; everything else is clean."""
    t = s.client("T")
    s.hold(effects.WriteShadowCells)
    tx: Tx = s.do(t, put(t, "java", R0))
    s.universe.kill(t.process)
    s.pass_time(10.0)
    compact(s)
    s.pass_time(actors.RETRY_BOUND_S + 1.0)
    return tx


def _demand_entry(s: Schedule, tx: Tx, why: str) -> None:
    if s.world.disk.commits.lookup([tx.start_ts])[0] <= 0:
        raise Stuck(f"K6: the entry of {tx.start_ts} was sanitised: {why}")


@_schedule
def a_table_registered_between_two_looks_is_not_forgotten(build: Build) -> None:
    """K6. Z has looked at one of marks and tables; a registration that takes the mark away, as those of earlier
    versions did, comes before it looks at the other."""
    s = Schedule(build)
    s.world.disk.store.create_table(TableInfo("java", (FAMILY,)))
    tx = _committed_by_java(s)
    z = s.client("Z")
    sanitising = s.start(z, actors.sanitise(z))

    def looks() -> Any:
        call = sanitising.call
        is_look = call is not None and isinstance(call.effect, effects.ReadUnknownTables | effects.ReadTables)
        return call.effect if is_look and call is not None else None

    s.until(lambda: looks() is not None, [z.process])
    seen = type(looks())
    s.until_call(sanitising, effects.ReadTables if seen is effects.ReadUnknownTables else effects.ReadUnknownTables)
    catalog, number = s.world.disk.catalog, table_id(b"java")
    put_entry(catalog, TableInfo("java", (FAMILY,)))
    catalog.clear_unknown_table(number, catalog.unknown_tables()[number])
    s.finish(sanitising)
    _demand_entry(s, tx, "its table was in neither list")


@_schedule
def a_table_that_others_made_again_is_marked_anew(build: Build) -> None:
    """K6. The TSO knows the table; it is dropped, a Java client makes another of its name and commits to that."""
    s = Schedule(build)
    java = TableInfo("java", (FAMILY,))
    s.world.disk.store.create_table(java)
    put_entry(s.world.disk.catalog, java)
    t = s.client("P")
    s.do(t, put(t, "java", R0))
    s.finish_all(t)
    remove_entry(s.world.disk.catalog, "java")
    s.do(t, t.ask(req.Fence(table_id(b"java"))))
    tx = _committed_by_java(s)
    sanitise(s)
    _demand_entry(s, tx, "its table was taken for one that is registered")


@_schedule
def a_promised_lease_survives_its_tso(build: Build) -> None:
    """K7. The TSO dies between the lease's promise and its row."""
    s = Schedule(build)
    r = s.client("R")
    reader = s.do(r, begin(r))
    s.hold(ins.UpdateLeaderState, lambda operation: bool(operation.changes.leases_added))
    granting = s.start(r, ignoring(reader.lease()))
    s.land(s.until_call(granting, req.GrantLease))
    s.kill(s.first)
    s._held.clear()
    s.lead()
    s.universe.kill(r.process)


@_schedule
def a_lease_holds_w_through_a_fail_over(build: Build) -> None:
    """K7. The new TSO finds the lease, and W stays below it."""
    s = Schedule(build)
    t, r = s.client("T"), s.client("R")
    s.do(t, put(t, "a", R0))
    s.finish_all(t)
    reader = s.do(r, begin(r, lease=True))
    s.fail_over()
    s.pass_time(10.0)
    s.do(r, reader.get("a", R0))
    s.judge()


def _history(s: Schedule, between: Callable[[], object]) -> None:
    """A start long past is read at, after a later commit and compaction."""
    t, r = s.client("T"), s.client("R")
    s.do(t, put(t, "a", R0))
    s.finish_all(t)
    reader = s.do(r, begin(r))
    s.pass_time(30.0)
    s.do(t, put(t, "a", R0))
    s.finish_all(t)
    between()
    s.pass_time(30.0)
    compact(s)
    s.do(r, reader.lease())
    s.do(r, reader.get("a", R0))
    s.judge()


@_schedule
def history_that_is_kept_can_be_read(build: Build) -> None:
    """T17. LWM passed the start long ago."""
    s = Schedule(build, wall_skew_s=0.0, retention_s=1000.0)
    _history(s, lambda: None)
    if s.first.machine.state.oracle.low_watermark < s.first.machine.state.watermarks.decided:
        raise Stuck("LWM stands with W")


@_schedule
def history_is_kept_through_a_fail_over(build: Build) -> None:
    """T17. All that is older than the new TSO is decided, and still kept."""
    s = Schedule(build, wall_skew_s=0.0, retention_s=1000.0)
    _history(s, s.fail_over)


@_schedule
def a_shared_lease_is_kept_for_its_last_sharer(build: Build) -> None:
    """K7. Two loads share a lease; the term of the first is over, that of the second is not."""
    s = Schedule(build)
    a, b, t = s.client("A"), s.client("B"), s.client("T")
    first = s.do(a, begin(a))
    s.do(a, first.share_lease(100.0))
    s.pass_time(8.0)
    second = s.do(b, begin(b))
    s.do(b, second.share_lease(100.0))
    s.do(t, put(t, "a", R0))
    s.pass_time(95.0)
    compact(s)
    s.do(b, second.get("a", R0))
    if len(s.first.machine.state.leases) != 1:
        raise Stuck("they share no lease")
    s.judge()


@_schedule
def a_start_shares_no_lease_above_it(build: Build) -> None:
    """K7. The younger of two loads was leased first."""
    s = Schedule(build)
    a, b = s.client("A"), s.client("B")
    older, younger = s.do(a, begin(a)), s.do(b, begin(b))
    s.do(b, younger.share_lease(100.0))
    s.do(a, older.share_lease(100.0))
    s.pass_time(50.0)
    s.do(a, older.get("a", R0))
    s.judge()


@_schedule
def an_owners_end_leaves_the_lease_to_its_sharers(build: Build) -> None:
    """K7. Somebody reads at the start of a transaction, which ends."""
    s = Schedule(build)
    a, b = s.client("A"), s.client("B")
    owner = s.do(a, begin(a, lease=True))
    sharer = s.do(b, begin(b))
    sharer.start_ts = owner.start_ts
    s.do(b, sharer.share_lease(100.0))
    s.do(a, owner.end_lease())
    s.pass_time(50.0)


@_schedule
def a_shared_lease_is_promised_once_its_row_is_durable(build: Build) -> None:
    """K7. The row of a lease is on its way; another start is to share it, and the TSO dies."""
    s = Schedule(build)
    a, b = s.client("A"), s.client("B")
    first, second = s.do(a, begin(a)), s.do(b, begin(b))
    s.hold(ins.UpdateLeaderState, lambda operation: bool(operation.changes.leases_added))
    for client, reader in ((a, first), (b, second)):
        sharing = s.start(client, ignoring(reader.share_lease(100.0)))
        s.land(s.until_call(sharing, req.GrantLease))
    s.kill(s.first)
    s._held.clear()
    s.lead()
    s.pass_time(10.0)
    for client in (a, b):
        s.universe.kill(client.process)


# ---------------------------------------------------------------- jobs: S1


def _job(client: Client, rows: Iterable[bytes]) -> Any:
    """A driver with a lease and one branch a row, all durable, not yet committed."""
    tx = yield from client.begin("job")
    yield from tx.lease()
    for row in rows:
        branch = yield from tx.branch()
        yield from tx.write("a", {row: {X: True}}, branch)
        tx.branches.append(branch)
    return tx


@_schedule
def a_job_is_whole_whenever_its_tso_dies(build: Build) -> None:
    """S1. The TSO is killed after each of the commit's writes; readers see the whole job or nothing of it."""
    for after in range(14):
        for lands in (False, True):
            if not _kill_in_commit(build, after, lands):
                return


def _kill_in_commit(build: Build, after: int, lands: bool) -> bool:
    """False: the commit was through before. `lands`: what was under way takes effect all the same."""
    s = Schedule(build)
    job, r = s.client("J"), s.client("R")
    tx = s.do(job, _job(job, (R0, R1, R2)))
    committing = s.start(job, ignoring(tx.commit()))
    s.land(s.until_call(committing, CommitRequest))
    for _ in range(after):
        found, _ = s.universe.moves(lambda move: isinstance(move[1], Call) and move[1].process is s.first.process)
        if not found:
            return False
        s.universe.make(found[0])
    s.kill(s.first)
    if lands:
        for zombie in [call for call in s.universe.calls if call.zombie]:
            s.land(zombie)
    s.universe.calls[:] = [call for call in s.universe.calls if not call.zombie]
    s.lead()
    reader = s.do(r, begin(r))
    s.do(r, reader.scan("a"))
    s.finish(committing)
    second = s.do(r, begin(r))
    s.do(r, second.scan("a"))
    s.judge()
    return True


# ---------------------------------------------------------------- reported ids: T20


def _reported_job(client: Client, *rows: bytes) -> Any:
    """A job of one task, whose ids the TSO knows; not yet committed."""
    tx = yield from client.begin("job")
    yield from tx.lease()
    branch = yield from tx.branch()
    yield from tx.write("a", {row: {X: True} for row in rows}, branch)
    tx.reported = yield from tx.report(branch)
    tx.branches.append(branch)
    return tx


def _loses(s: Schedule, client: Client, tx: Tx) -> None:
    s.do(client, ignoring(tx.commit()))
    assert not tx.record.commit_ts, f"{tx.record.name} commits, although another commit wrote its cell meanwhile"
    s.judge()


@_schedule
def a_commit_meets_the_ids_of_a_job_that_committed(build: Build) -> None:
    """T20. T began before the job's commit and wrote one of its cells."""
    s = Schedule(build)
    job, t = s.client("J"), s.client("T")
    tx = s.do(job, _reported_job(job, R0, R1))
    small = s.do(t, written(t, "a", R1))
    s.do(job, tx.commit())
    assert tx.record.commit_ts
    other = s.do(t, written(t, "a", R2))
    s.do(t, other.commit())
    assert other.record.commit_ts, "it wrote no cell of the job"
    _loses(s, t, small)


@_schedule
def a_job_meets_commits_to_its_cells(build: Build) -> None:
    """T20. T commits a cell that the job has written, and reported, but not committed."""
    s = Schedule(build)
    job, t = s.client("J"), s.client("T")
    tx = s.do(job, _reported_job(job, R0, R1))
    s.do(t, put(t, "a", R1))
    _loses(s, job, tx)


@_schedule
def a_job_with_many_ids_meets_commits_to_its_cells(build: Build) -> None:
    """T20. As before, of a job that searches for the map's later ids instead of looking up its own."""
    s = Schedule(build, conflict_map_entries=1)
    job, t = s.client("J"), s.client("T")
    tx = s.do(job, _reported_job(job, *actors.ROWS))
    s.do(t, put(t, "a", R1))
    _loses(s, job, tx)


@_schedule
def two_jobs_meet(build: Build) -> None:
    """T20. Both reported a cell that both wrote."""
    s = Schedule(build)
    one, two = s.client("J"), s.client("L")
    first, second = s.do(one, _reported_job(one, R0, R1)), s.do(two, _reported_job(two, R1, R2))
    s.do(one, first.commit())
    assert first.record.commit_ts
    _loses(s, two, second)


@_schedule
def a_job_whose_ids_the_tso_lacks_does_not_commit(build: Build) -> None:
    """T20. Its lease ended, so the TSO forgot its ids. T, which began before the job, committed one of its cells."""
    s = Schedule(build)
    job, t = s.client("J"), s.client("T")
    s.do(t, begin(t))  # LWM stays below it
    tx = s.do(job, _reported_job(job, R0))
    s.do(t, put(t, "a", R0))
    s.do(job, tx.end_lease())
    s.pass_time(0.5)
    _loses(s, job, tx)


@_schedule
def ids_that_go_raise_lwm(build: Build) -> None:
    """T20. The second job's ids take the room of the first one's. T began before the first one's commit."""
    s = Schedule(build, reported_ids_max=130)
    one, two, t = s.client("J"), s.client("L"), s.client("T")
    first = s.do(one, _reported_job(one, R0, R1))
    small = s.do(t, written(t, "a", R1))
    s.do(one, first.commit())
    assert first.record.commit_ts
    s.do(two, _reported_job(two, R2))
    s.do(two, _reported_job(two, R2))
    _loses(s, t, small)


@_schedule
def a_job_below_lwm_is_decided_by_its_tables(build: Build) -> None:
    """T20. Evictions raised LWM above the job: the map may have forgotten a commit to one of its cells."""
    for row, table in ((R1, "a"), (R1, "b")):
        s = Schedule(build, conflict_map_entries=1, reported_ids_max=10_000)
        job, t = s.client("J"), s.client("T")
        tx = s.do(job, _reported_job(job, R0, R1))
        s.do(t, put(t, table, row))
        for number in range(60):
            s.do(t, put(t, "b", f"other {number}".encode()))
        assert s.first.machine.state.oracle.low_watermark > tx.start_ts
        s.do(job, ignoring(tx.commit()))
        assert bool(tx.record.commit_ts) == (table == "b")
        s.judge()


# ---------------------------------------------------------------- taking over, the leader state


@_schedule
def a_ceiling_moved_during_take_over_is_not_handed_out_again(build: Build) -> None:
    """T3. O2 has read the leader state; O1, still leading by its own lights, moves the ceiling and uses it."""
    s = Schedule(build, ceiling_step=2_000, ceiling_renew_remaining=1_000, window_starts=1, stall_s_max=FOREVER_S)
    client = s.client("C")
    old = s.first
    old.feed(ins.LeaseRenewed(FOREVER_S))
    s.world.lock.until_s = 0.0
    release = s.hold(ins.TakeOverEpoch)
    new = s.world.start_tso()
    s.until(lambda: s.is_sent(ins.TakeOverEpoch), [])
    for _ in range(60):
        s.do(client, client.ask(req.Begin()))
    release()
    s.until(lambda: new.serving or not new.process.alive, [])
    if new.serving:
        for _ in range(60):
            s.do(client, client.ask(req.Begin()))


@_schedule
def a_late_change_of_the_leader_state_changes_nothing(build: Build) -> None:
    """Decision 0004. W is sent, its answer lost, sent again, then a higher W; the first one lands last."""
    s = Schedule(build)
    client = s.client("C")
    s.do(client, begin(client))
    release = s.hold(ins.UpdateLeaderState, lambda operation: operation.changes.watermark is not None)
    s.pass_time(5.0)
    late = s.sent(ins.UpdateLeaderState)
    s.universe.make(("apply", late))
    s.universe.make(("lose request", late))
    release()
    s.do(client, begin(client))
    s.pass_time(10.0)
    s.land(late)


def run_directed(name: str, build: Build | None = None) -> str | None:
    """None where the schedule plays through; else what went wrong."""
    if name not in SCHEDULES:
        raise Misuse(f"there is no schedule {name!r}")
    try:
        SCHEDULES[name](build or Build())
    except Exception as error:  # a core without one of its rules may fail in any way
        return f"{type(error).__name__}: {error}"
    return None
