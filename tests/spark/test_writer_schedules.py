"""Three drivers under one id beside a stranger, in any order of their steps: killed, without answer, without lease,
beside compaction. Who is told success has its rows seen, or those of the one run that won; never both, never a part."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from test_writer import compact, leases, prepared, push_watermark_past, rows_of, save, written

from pyomid import crashpoints
from pyomid.errors import ConflictError, OmidError, OutcomeUnknown, UnknownTable
from pyomid.spark.connections import Connection, connection
from pyomid.spark.run_outcome import RunState, outcome_of
from pyomid.spark.source.writer import BranchMessage, OmidWriter

pytestmark = pytest.mark.fast

DRIVERS = 3
STEPS = ("prepare", "write", "commit", "lose_lease", "lose_answer", "fail_behind", "kill")
EVENTS = [(step, driver) for step in STEPS for driver in range(DRIVERS)] + [("clean", 0), ("stranger", 0)]
_numbers = itertools.count()


class Killed(BaseException):
    """Nothing of the driver runs any more."""


@dataclass
class Driver:
    number: int
    writer: OmidWriter | None = None
    messages: list[BranchMessage] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def rows(self) -> list[tuple[str, int]]:
        return [(f"{self.number}-{row}", self.number) for row in range(2)] + [("shared", self.number)]


@dataclass
class World:
    """`mode`: how the drivers treat a table that is there."""

    conn: Connection
    mode: str
    drivers: list[Driver]

    def prepare(self, driver: Driver) -> None:
        driver.messages = []
        driver.writer = prepared(self.conn, runId="load", ifExists=self.mode)

    def write(self, driver: Driver) -> None:
        if driver.writer is not None and not driver.messages:
            rows = driver.rows()
            driver.messages = [written(driver.writer, *rows[:1]), written(driver.writer, *rows[1:])]

    def commit(self, driver: Driver) -> None:
        writer, messages = driver.writer, driver.messages
        if writer is None or not messages:
            return
        driver.writer = None
        try:
            writer.commit(list(messages))
            driver.told.append("committed")
        except Killed:
            pass
        except OmidError as error:
            driver.told.append("refused" if isinstance(error, ConflictError) else type(error).__name__)
            writer.abort(list(messages))

    def lose_lease(self, driver: Driver) -> None:
        if driver.writer is not None:
            self.conn.deployment.tso.end_lease(driver.writer.begun.start_ts)

    def lose_answer(self, driver: Driver) -> None:
        self.commit_with("client.commit.answered", driver, self.no_answer)

    def fail_behind(self, driver: Driver) -> None:
        """The store is gone once the commit is decided."""
        self.commit_with("client.complete.shadows_before", driver, self.no_answer)

    def kill(self, driver: Driver) -> None:
        self.commit_with("client.commit.answered", driver, self.die)

    def commit_with(self, point: str, driver: Driver, action: Callable[[], None]) -> None:
        crashpoints.arm_action(point, action)
        try:
            self.commit(driver)
        finally:
            crashpoints.disarm()

    def no_answer(self) -> None:
        raise OutcomeUnknown("the answer is lost")

    def die(self) -> None:
        raise Killed

    def clean(self, _: Driver) -> None:
        """As far as living leases let W go."""
        newest = self.conn.deployment.tso.begin().start_ts
        push_watermark_past(self.conn, min([newest, *(start - 50 for start in leases(self.conn))]))
        for info in self.conn.deployment.catalog.tables():
            compact(self.conn, info)

    def stranger(self, _: Driver) -> None:
        save(self.conn, ("shared", 100))


@settings(max_examples=12, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    schedule=st.lists(st.sampled_from(EVENTS), min_size=4, max_size=10),
    mode=st.sampled_from(["append", "ignore", "error"]),
)
def test_of_all_drivers_under_one_id_one_counts_and_whole(schedule: list[tuple[str, int]], mode: str) -> None:
    conn = connection(f"omid-memory:spark-schedule-{next(_numbers)}?conflictMapEntries=64")
    world = World(conn, mode, [Driver(number) for number in range(DRIVERS)])
    for step, number in [("prepare", 0), ("write", 0), ("prepare", 1), ("write", 1), *schedule]:
        try:
            getattr(world, step)(world.drivers[number])
        except OmidError:
            assert step in ("prepare", "write"), "a lease that is lost, a table that has rows"
            world.drivers[number].writer = None
        seen = rows_seen(conn)
        whole = [d.number for d in world.drivers if set(d.rows()[:2]) <= set(seen)]
        parts = [d.number for d in world.drivers if set(d.rows()) & set(seen)]
        assert parts == whole, f"a part of a commit: {seen}"
        assert len(whole) <= 1, f"one id counts twice: {seen}"
        told = any("committed" in driver.told for driver in world.drivers)
        state = outcome_of(conn, "load").state
        ignored = mode == "ignore" and not whole and state is RunState.COMMITTED
        assert whole or not told or ignored, f"told committed, and gone: {seen}"
        assert (state is RunState.COMMITTED) == bool(whole or ignored)


def rows_seen(conn: Connection) -> list[tuple[str, int]]:
    try:
        return [(row[0], row[1]) for row in rows_of(conn)]
    except UnknownTable:
        return []
