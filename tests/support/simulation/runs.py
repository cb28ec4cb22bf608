"""One seed, from an empty disk to the verdict: a safety phase with faults, a liveness phase without."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pyomid.errors import SnapshotTooOld, Unavailable
from pyomid.testing import checker
from simulation import actors
from simulation.actors import Plan, World
from simulation.build import Build
from simulation.universe import NO_FAULTS, Choices, Faults, Process, Sleep, Stuck

SAFETY_STEPS = 3_000
LIVENESS_STEPS = 40_000


@dataclass(slots=True)
class Report:
    """How a run ended: `failure` None is good."""

    seed: int
    failure: str | None
    story: str
    steps: int = 0
    committed: int = 0
    aborted: int = 0
    write_skew: bool = False
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.failure is None

    def __str__(self) -> str:
        if self.ok:
            return f"seed {self.seed}: {self.committed} committed, {self.aborted} aborted, {self.steps} moves"
        return f"seed {self.seed} fails: {self.failure}\n{self.story}\nseed {self.seed} fails: {self.failure}"


def run_seed(seed: int, build: Build | None = None) -> Report:
    """The random universe of a seed, on the build (unpatched where none is given)."""
    choices = Choices(seed)
    world = World(build or Build(), choices, _plan(choices))
    try:
        _play(world)
    except Exception as error:  # a core without one of its rules may fail in any way
        return _report(world, f"{type(error).__name__}: {error}")
    return _report(world, None)


def _plan(choices: Choices) -> Plan:
    settings: dict[str, Any] = {
        "conflict_map_entries": choices.pick((8, 64, 4096)),
        "window_starts": choices.pick((1, 4, 64)),
        "batch_entries_max": choices.pick((1, 4, 100)),
        "flushes_in_flight_max": choices.pick((1, 2, 3)),
        "max_transaction_age_s": choices.pick((2.0, 10.0, 60.0)),
        "lease_seconds": choices.pick((2.0, 10.0, 30.0)),
        "watermark_interval_s": choices.pick((0.0, 0.5)),
        "tables_interval_s": 5.0,
        "commit_retry_s": actors.RETRY_BOUND_S,
        "write_set_fraction_max": 1.0,
        "reported_ids_max": choices.pick((200, 400, 100_000)),
    }
    has_clock = choices.chance(0.6)
    if not has_clock:
        step = choices.pick((20_000, 200_000))
        settings |= {"ceiling_step": step, "ceiling_renew_remaining": step // 2}
    plain_puts = choices.chance(0.5)
    return Plan(
        plain_puts=plain_puts,
        settled_reads=not plain_puts,
        settings=settings,
        wall_skew_s=choices.pick(((0.0,), (0.0, -3600.0), (0.0, 600.0, -600.0))) if has_clock else (None,),
        clock_is_set=has_clock and choices.chance(0.3),
    )


def _play(world: World) -> None:
    universe, choices = world.universe, world.universe.choices
    faults = choices.pick(
        (
            Faults(),
            Faults(lose_answer=0.01, lose_request=0.01),
            Faults(lose_answer=0.01, lose_request=0.01, kill=0.001, stop=0.001),
            Faults(kill=0.003, stop=0.002),
        )
    )
    universe.killable = lambda process: not process.name.startswith("keeper")
    world.start_tso()
    universe.spawn(universe.process("keeper"), "keeper", actors.keeper(world))
    universe.run(1_000, until=lambda: world.hosts.find() is not None)
    _populate(world)
    universe.faults = faults
    universe.run(SAFETY_STEPS)
    _calm_down(world)
    judge(world)


def _populate(world: World) -> None:
    choices = world.universe.choices
    for number in range(choices.number(2, 4)):
        client = world.client(f"T{number + 1}")
        client.spawn("", actors.writer(client))
    for number in range(choices.number(1, 2)):
        client = world.client(f"R{number + 1}")
        client.spawn("", actors.reader(client))
    if choices.chance(0.5):
        client = world.client("L")
        client.spawn("", actors.reader(client, leased=True))
    if choices.chance(0.5):
        client = world.client("J")
        client.spawn("", actors.large_writer(client))
    if choices.chance(0.7):
        for number in range(choices.number(1, 2)):
            client = world.client(f"K{number + 1}")
            client.spawn("", actors.compactor(client))
    if choices.chance(0.6):
        for number in range(choices.number(1, 2)):
            client = world.client(f"Z{number + 1}")
            client.spawn("", actors.sanitiser(client))

    if not world.plan.plain_puts and choices.chance(0.2):
        client = world.client("M")
        client.spawn("", actors.meddler(client))
    if choices.chance(0.3):
        client = world.client("S")
        client.spawn("", actors.splitter(client))


def end_faults(world: World) -> None:
    """From here on nothing is lost or stopped, nobody is slow, and nobody begins anything new."""
    universe = world.universe
    universe.faults = NO_FAULTS
    world.closing = True
    universe.note("— from here on without faults —")
    for process in universe.processes:
        process.stopped = False
    for task in universe.tasks:
        task.speed = 1.0
    for call in universe.calls:
        call.speed = 1.0


def _calm_down(world: World) -> None:
    """No faults any more: everybody must finish."""
    end_faults(world)
    universe = world.universe

    def finished() -> bool:
        return all(_is_service(world, task.process) for task in universe.tasks)

    if not universe.run(LIVENESS_STEPS, until=finished):
        waiting = [task.name for task in universe.tasks if not _is_service(world, task.process)]
        raise Stuck(f"liveness: {', '.join(waiting)} did not finish in {LIVENESS_STEPS} moves without faults")
    _clean_up(world)


def _is_service(world: World, process: Process) -> bool:
    return process.name == "keeper" or any(host.process is process for host in world.hosts.hosts)


def _clean_up(world: World) -> None:
    """A last compaction and sanitising leave a clean store, and a last reader sees what the truth says."""
    universe = world.universe
    client = world.client("last")
    task = client.spawn("", _last_words(client))
    if not universe.run(LIVENESS_STEPS, until=lambda: task.finished):
        raise Stuck("liveness: the last compaction, sanitising and reading did not finish")
    left = world.truth.what_is_left()
    if left:
        raise Stuck("; ".join(left))


def _last_words(client: actors.Client) -> Any:
    """Everything that was there now falls below W by age alone (T15); then it is cleaned, and read once more."""
    world = client.world
    tx = yield from _reading_all(client)
    for _ in range(200):
        if world.disk.leader_state.read().watermark >= tx.start_ts:
            break
        yield Sleep(world.plan.settings["max_transaction_age_s"] / 4)
    else:
        raise Stuck(f"T15: W {world.disk.leader_state.read().watermark} never reaches the old start {tx.start_ts}")
    yield from actors.compact_all(client, lazy=False)
    yield Sleep(actors.RETRY_BOUND_S + 1.0)
    while not (yield from actors.sanitise(client)):
        pass
    yield from _reading_all(client)


def _reading_all(client: actors.Client) -> Any:
    """A transaction that has read every table."""
    while True:
        try:
            tx = yield from client.begin()
            for table in actors.TABLES:
                yield from tx.scan(table)
        except (Unavailable, SnapshotTooOld):
            yield Sleep(0.5)
            continue
        return tx


def judge(world: World) -> None:
    """The whole history against strict snapshot isolation."""
    checker.demand(world.truth.settle(world.history))


def _report(world: World, failure: str | None) -> Report:
    outcomes = [txn.outcome for txn in world.history.transactions if txn.last_writes()]
    return Report(
        seed=world.universe.choices.seed,
        failure=failure,
        story=world.universe.story(),
        steps=world.universe.steps,
        committed=sum(outcome.value == "committed" for outcome in outcomes),
        aborted=sum(outcome.value == "aborted" for outcome in outcomes),
    )
