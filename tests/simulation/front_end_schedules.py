"""Directed schedules of the shipped front ends: one interleaving each, told step by step, without chance or faults.

A schedule moves processes by name. Each ends well on the product as it is, and badly where its rule was taken out
(`shipped_mutants`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from front_end_world import FrontProcess, FrontWorld
from spark_actors import Jobs, Query, read_and_judge, run_batch
from virtual_spark import VirtualSpark

from pyomid.types import CommitRequest
from simulation.actors import Plan
from simulation.directed import SETTINGS
from simulation.universe import Call, Choices, Move, Process, Stuck, Task

STEPS_MAX: Final = 50_000


class FrontSchedule:
    """A universe in which only the TSO and what is called by name move."""

    def __init__(self) -> None:
        self.world = FrontWorld(Choices(1), Plan(plain_puts=False, settings=dict(SETTINGS)))
        self.universe = self.world.universe
        self.universe.time_flows = False  # a leader that pauses by chance would lose its lease
        self.jobs = Jobs()

    @contextmanager
    def running(self) -> Iterator[None]:
        with self.world.running():
            host = self.world.start_tso()
            self.until(lambda: host.serving)
            yield

    def process(self, name: str) -> FrontProcess:
        return self.world.process(name)

    def start(self, process: FrontProcess, function: Callable[[], Any]) -> Task:
        return process.start("main", function)

    def do(self, process: FrontProcess, function: Callable[[], Any]) -> Any:
        return self.finish(process, self.start(process, function))

    def finish(self, process: FrontProcess, task: Task) -> Any:
        self.until(lambda: task.finished, process)
        if task.failure is not None:
            raise task.failure
        return task.result

    def until_decided(self, process: FrontProcess, count: int = 1) -> None:
        """Its `count`-th commit is decided and durable; the answer is on its way."""
        self.until(lambda: len(self.world.truth.commits) >= count, process)

    def until_asked(self, process: FrontProcess) -> None:
        """It is about to send a commit request."""

        def asked() -> bool:
            return any(
                call.process is process.process and isinstance(call.effect, CommitRequest)
                for call in self.universe.calls
            )

        self.until(asked, process)

    def kill(self, process: FrontProcess) -> None:
        self.universe.kill(process.process)

    def until(self, goal: Callable[[], bool], *movers: FrontProcess) -> None:
        names = [mover.name for mover in movers]

        def moves(process: Process) -> bool:
            """The TSO, who is called, and who works for it on its behalf."""
            return process.name.startswith("O") or any(
                process.name == name or process.name.startswith(f"{name}-") for name in names
            )

        def allowed(move: Move) -> bool:
            kind, what = move
            if kind in ("kill", "stop", "continue", "forget", "lose request", "lose answer"):
                return False
            return not (isinstance(what, Call) and what.zombie) and moves(what.process)

        for _ in range(STEPS_MAX):
            if goal():
                return
            if not self.universe.step(allowed):
                break
        if not goal():
            raise Stuck(f"the schedule does not reach its goal; its end:\n{self.universe.story(60)}")

    def judge(self) -> None:
        """A snapshot drawn now has what was told, whole and once."""
        reader = self.process("Q")
        assert self.do(reader, lambda: read_and_judge(reader, VirtualSpark(reader), self.jobs)), "nothing was read"


def two_drivers_of_one_batch(s: FrontSchedule) -> None:
    """S4. Both have the batch in hand, neither has seen the other's commit when it begins."""
    query = Query("query", (None,))
    one, other = s.process("F1"), s.process("F2")
    first = s.start(one, lambda: run_batch(one, query, 0, s.jobs))
    s.until_asked(one)
    s.do(other, lambda: run_batch(other, query, 0, s.jobs))
    s.judge()
    s.finish(one, first)
    s.judge()


def a_batch_replayed_behind_its_commit(s: FrontSchedule) -> None:
    """S4. The driver dies behind the commit and before the checkpoint knows; another is handed the batch."""
    query = Query("query", (None,))
    one, other = s.process("F1"), s.process("F2")
    s.start(one, lambda: run_batch(one, query, 0, s.jobs))
    s.until_decided(one)
    s.kill(one)
    s.do(other, lambda: run_batch(other, query, 0, s.jobs))
    s.judge()


def two_sinks_of_one_batch(s: FrontSchedule) -> None:
    """S4. Each counts, also when the batch is handed out again after the first one's commit."""
    query = Query("query", ("left", "right"))
    one, other = s.process("F1"), s.process("F2")
    s.start(one, lambda: run_batch(one, query, 0, s.jobs))
    s.until_decided(one)
    s.kill(one)
    s.do(other, lambda: run_batch(other, query, 0, s.jobs))
    s.judge()


SCHEDULES: Final[dict[str, Callable[[FrontSchedule], None]]] = {
    schedule.__name__: schedule
    for schedule in (two_drivers_of_one_batch, a_batch_replayed_behind_its_commit, two_sinks_of_one_batch)
}


def play_schedule(name: str) -> None:
    schedule = FrontSchedule()
    with schedule.running():
        SCHEDULES[name](schedule)
