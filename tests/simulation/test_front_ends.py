"""The shipped front ends in random universes, by seed: blocking and asyncio clients, durable ids, tables that are
dropped and made again, leases, upkeep; TSOs and clients that die, stop, and lose answers.

A failing seed prints its interleaving. `PYOMID_FRONT_END_SEEDS=4711-4711 pytest tests/simulation/test_front_ends.py`
plays it again. With `PYOMID_SIMULATION_MIRROR=1` each TSO decides twice, by compiled code and by its reference.
"""

from __future__ import annotations

import os
from contextlib import suppress

import pytest
from front_end_actors import (
    FOREIGN,
    REMADE,
    Notes,
    maintain,
    register_foreign,
)
from front_end_world import FrontProcess, FrontWorld
from green_threads import wait
from populations import Populate, claimers, clients, spark_jobs, streams
from spark_actors import Jobs, read_and_judge
from virtual_spark import VirtualSpark

from portions import first
from pyomid.errors import Misuse, OmidError, Unavailable
from pyomid.testing import checker
from simulation import actors
from simulation.runs import _plan, end_faults
from simulation.universe import Choices, Faults, Sleep, Stuck

STEPS = 2_500
STEPS_TO_CALM = 60_000
FIRST, _, LAST = os.environ.get("PYOMID_FRONT_END_SEEDS", "1-30").partition("-")
SEEDS = range(int(FIRST), int(LAST or FIRST) + 1)
FEW = 8


def play(seed: int, populate: Populate = clients) -> tuple[FrontWorld, Jobs]:
    """One universe from an empty disk to the verdict; raises what is wrong with it."""
    choices = Choices(seed)
    cache_s = choices.pick((0.0, 0.0, 5.0))
    plan = _plan(choices)
    plan.settings["reported_ids_max"] = 100_000 if seed % 2 else 70  # of one task's ids: then jobs claim their tables
    world = FrontWorld(choices, plan, catalog_cache_s=cache_s)
    universe, notes, jobs = world.universe, Notes(), Jobs()
    with world.running():
        try:
            world.start_tso()
            universe.spawn(universe.process("keeper"), "keeper", actors.keeper(world))
            universe.run(1_000, until=lambda: world.hosts.find() is not None)
            populate(world, notes, jobs)
            universe.killable = lambda process: not process.name.startswith("keeper")
            universe.faults = choices.pick(
                (
                    Faults(),
                    Faults(lose_answer=0.01, lose_request=0.01),
                    Faults(lose_answer=0.005, lose_request=0.005, kill=0.001, stop=0.001),
                    Faults(kill=0.002, stop=0.002),
                )
            )
            universe.run(STEPS)
            _calm_down(world, jobs)
            _resolve(world, notes)
        except Exception as error:
            raise AssertionError(
                f"seed {seed}: {type(error).__name__}: {error}\n{universe.story(150)}\nseed {seed}: {error}"
            ) from error
    return world, jobs


def _calm_down(world: FrontWorld, jobs: Jobs) -> None:
    end_faults(world)
    universe = world.universe

    def busy() -> list[str]:
        return [task.name for task in universe.tasks if task.name.endswith(".main") or task.name.startswith("J")]

    if not universe.run(STEPS_TO_CALM, until=lambda: not busy()):
        raise Stuck(f"liveness: {', '.join(busy())} did not finish in {STEPS_TO_CALM} moves without faults")
    last = world.process("last")
    task = last.start("main", lambda: _last_words(last, jobs))
    if not universe.run(STEPS_TO_CALM, until=lambda: task.finished):
        raise Stuck("liveness: the last compaction, sanitising and reading did not finish")
    if task.failure is not None:
        raise task.failure


def _last_words(process: FrontProcess, jobs: Jobs) -> None:
    """Everything is cleaned and read once more."""
    database = process.connect()
    world = process.world
    for _ in range(100):
        try:
            with database.begin() as tx:
                wanted = tx.start_ts
            break
        except OmidError:
            wait(Sleep(0.5))
    for _ in range(300):
        if world.disk.leader_state.read().watermark >= wanted:
            break
        wait(Sleep(world.plan.settings["max_transaction_age_s"] / 4))
    for _ in range(20):
        if FOREIGN in world.disk.store._tables:
            with suppress(Misuse, Unavailable):
                register_foreign(database)
        if maintain(process, database, lazy=False):
            break
    if jobs.told or jobs.told_ids:
        spark = VirtualSpark(process)
        while not read_and_judge(process, spark, jobs):
            wait(Sleep(0.5))


def _resolve(world: FrontWorld, notes: Notes) -> None:
    verdict = checker.demand(world.truth.settle(world.history))
    assert not notes.all_claim or verdict.write_skew is None, str(verdict.write_skew)
    committed = world.truth.commits
    for name, tries in notes.tries.items():
        counted = [start for start in tries if start in committed]
        assert len(counted) <= 1, f"{name} was committed {len(counted)} times, by {counted}"
        for start in notes.told_done.get(name, []):
            assert counted == [start], f"{name}: told that {start} did it, committed is {counted}"
    seen: dict[tuple[bytes, object], int] = {}
    for rewrite in notes.rewrites:
        lived_in = rewrite.generation if rewrite.before is None else int(rewrite.before.rpartition(b".")[2])
        assert lived_in == rewrite.generation, (
            f"{rewrite.start_ts} found a row of generation {lived_in} in {REMADE} of generation {rewrite.generation}"
        )
        before = (rewrite.row, rewrite.before if rewrite.before is not None else rewrite.generation)
        assert before not in seen, (
            f"lost update in {REMADE}: {seen[before]} and {rewrite.start_ts} both wrote over {before}"
        )
        seen[before] = rewrite.start_ts


@pytest.mark.fast
@pytest.mark.parametrize("seed", first(FEW, SEEDS))
def test_front_ends_are_safe_and_live(seed: int) -> None:
    play(seed)


@pytest.mark.fast
@pytest.mark.parametrize("seed", first(FEW, SEEDS))
def test_spark_jobs_count_once_and_whole(seed: int) -> None:
    play(seed, spark_jobs)


@pytest.mark.fast
@pytest.mark.parametrize("seed", first(FEW, SEEDS))
def test_stream_batches_count_once_and_whole(seed: int) -> None:
    play(seed, streams)


@pytest.mark.fast
@pytest.mark.parametrize("seed", first(FEW, SEEDS[:10]))
def test_who_claims_what_it_reads_is_serializable(seed: int) -> None:
    play(seed, claimers)


@pytest.mark.fast
def test_front_end_universes_are_not_empty() -> None:
    worlds = [play(seed)[0] for seed in range(1, 6)]
    outcomes = [txn.outcome.value for world in worlds for txn in world.history.transactions if txn.last_writes()]
    assert outcomes.count("committed") >= 20


@pytest.mark.fast
@pytest.mark.parametrize("populate", [spark_jobs, streams])
def test_spark_universes_are_not_empty(populate: Populate) -> None:
    told = [jobs for _, jobs in (play(seed, populate) for seed in range(1, 13))]  # their ids are random
    assert sum(len(jobs.told) + len(jobs.told_ids) for jobs in told) >= 10


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_many_front_end_universes() -> None:
    for seed in range(10_000, 10_000 + int(os.environ.get("PYOMID_SOAK_SEEDS", "5000"))):
        play(seed)
