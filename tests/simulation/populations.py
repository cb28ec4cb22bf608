"""Which programs live in a universe of the front ends: mixes that reach different rules."""

from __future__ import annotations

from collections.abc import Callable

from front_end_actors import (
    Notes,
    asyncio_writers,
    blocking_writer,
    claimer,
    foreign_writer,
    maintainer,
    once_runner,
    registrar,
    row_rewriter,
    table_remaker,
)
from front_end_world import FrontProcess, FrontWorld
from spark_actors import Jobs, Query, snapshot_reader, source_writer, stream_driver, transaction_runner

Populate = Callable[[FrontWorld, Notes, Jobs], None]
Life = Callable[..., None]


def clients(world: FrontWorld, notes: Notes, jobs: Jobs) -> None:
    """Blocking and asyncio programs, and now and then each of the others."""
    choices = world.universe.choices
    _several(world, "B", choices.number(1, 2), blocking_writer)
    _several(world, "A", choices.number(0, 2), asyncio_writers)
    if choices.chance(0.6):
        runners(world, notes, jobs)
    if choices.chance(0.5):
        remakers(world, notes, jobs)
    if choices.chance(0.4):
        foreigners(world, notes, jobs)
    _several(world, "K", choices.number(0, 2), maintainer)


def runners(world: FrontWorld, notes: Notes, jobs: Jobs) -> None:
    """The same few durable ids in several processes."""
    _several(world, "N", world.universe.choices.number(2, 3), once_runner, notes)


def claimers(world: FrontWorld, notes: Notes, jobs: Jobs) -> None:
    """Who claims all that it reads: the history must be serializable."""
    notes.all_claim, world.keeps_writers = True, False
    _several(world, "C", world.universe.choices.number(2, 4), claimer)
    _several(world, "K", world.universe.choices.number(0, 1), maintainer)


def remakers(world: FrontWorld, notes: Notes, jobs: Jobs) -> None:
    """A table that is dropped and made again, under its writers."""
    _several(world, "C", 2 if world.universe.choices.chance(0.3) else 1, table_remaker)
    _several(world, "W", 2, row_rewriter, notes)


def foreigners(world: FrontWorld, notes: Notes, jobs: Jobs) -> None:
    """A table that a Java client makes and writes, registered late."""
    for number in range(world.universe.choices.number(1, 2)):
        client = world.client(f"J{number + 1}")
        client.spawn("", foreign_writer(client))
    _several(world, "G", 1, registrar)
    _several(world, "U", 1, maintainer)


def spark_jobs(world: FrontWorld, notes: Notes, jobs: Jobs) -> None:
    """Transactions over frames, writes by the data source, and who reads them."""
    choices = world.universe.choices
    _several(world, "S", choices.number(0, 2), transaction_runner, jobs)
    _several(world, "D", choices.number(1, 3), source_writer, jobs)
    _several(world, "Q", 1, snapshot_reader, jobs)
    if choices.chance(0.3):
        _several(world, "B", 1, blocking_writer)
    _several(world, "K", choices.number(0, 2), maintainer)


def streams(world: FrontWorld, notes: Notes, jobs: Jobs) -> None:
    """Two or three drivers of one query, with one sink or two in each batch."""
    choices = world.universe.choices
    query = Query("query", choices.pick(((None,), ("left", "right"), (None, "second"))))
    _several(world, "F", choices.number(2, 3), stream_driver, query, jobs)
    _several(world, "Q", 1, snapshot_reader, jobs)
    _several(world, "K", choices.number(0, 2), maintainer)


def _several(world: FrontWorld, name: str, count: int, life: Life, *arguments: object) -> None:
    for number in range(count):
        _start(world.process(f"{name}{number + 1}"), life, arguments)


def _start(process: FrontProcess, life: Life, arguments: tuple[object, ...]) -> None:
    process.start("main", lambda: life(process, *arguments))
