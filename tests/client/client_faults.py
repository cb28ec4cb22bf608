"""Faults put between a client and real parts: the part itself works on, the answer is lost or an error comes first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pyomid.cells import CellBatch, CellNames
from pyomid.database.database import Database
from pyomid.errors import OmidError, StoreFull
from pyomid.ports import Capabilities, DataStore, Deployment
from pyomid.types import ShadowWrite
from pyomid.wiring import open_deployment


class Around:
    """A part with some of its methods replaced: `around.method = lambda real, *args: …`."""

    def __init__(self, real: Any, **methods: Callable[..., Any]) -> None:
        self._real = real
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        method = self._methods.get(name)
        real = getattr(self._real, name)
        if method is None:
            return real
        return lambda *args, **kwargs: method(real, *args, **kwargs)


def parts_with(parts: Deployment, **parts_around: dict[str, Callable[..., Any]]) -> Deployment:
    """Those named in `parts_around` have some methods replaced."""
    around: dict[str, Any] = {name: Around(getattr(parts, name), **methods) for name, methods in parts_around.items()}
    return replace(parts, **around)


@contextmanager
def database_with(url: str, **parts_around: dict[str, Callable[..., Any]]) -> Iterator[Database]:
    with Database(parts_with(open_deployment(url), **parts_around), url=url) as database:
        yield database


def failing(error: Exception, *, nth: int = 1, after: bool = False) -> Callable[..., Any]:
    """The n-th call raises `error`: before the real thing happens, or after it did (a lost answer)."""
    calls = 0

    def call(real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls != nth:
            return real(*args, **kwargs)
        if after:
            real(*args, **kwargs)
        raise error

    return call


@dataclass(slots=True, eq=False)
class Begun:
    table: str
    version: int
    batch: CellBatch


class LateStore:
    """A store that performs what was begun when it is awaited, the last one first: the worst that a network may do.

    `at_once`: performs it when it is begun. `fails`: the error of a write, by its number. With `StoreFull` nothing of
    it was performed, with any other error it was.
    """

    capabilities = Capabilities(pipelined_writes=True)

    def __init__(self, real: DataStore, *, at_once: bool = False, fails: dict[int, OmidError] | None = None) -> None:
        self._real = real
        self._at_once = at_once
        self._fails = fails or {}
        self._numbers: dict[int, int] = {}
        self.on_their_way: list[Begun] = []
        self.most_on_their_way = 0
        self.shadow_batches = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def begin_write(self, table: str, version: int, batch: CellBatch) -> Begun:
        begun = Begun(table, version, batch)
        self._numbers[id(begun)] = len(self._numbers) + 1
        self.on_their_way.append(begun)
        self.most_on_their_way = max(self.most_on_their_way, len(self.on_their_way))
        if self._at_once:
            self._real.write_batch(table, version, batch)
        return begun

    def end_writes(self, begun: Sequence[Begun]) -> None:
        failures = []
        for each in reversed(begun):
            self.on_their_way.remove(each)
            failure = self._fails.get(self._numbers[id(each)])
            if not isinstance(failure, StoreFull):
                self._real.write_batch(each.table, each.version, each.batch)
            failures += [failure] if failure is not None else []
        if failures:
            raise failures[-1]

    def write_shadow_batches(self, table: str, version: int, batches: Sequence[CellBatch], commit_ts: int) -> None:
        self.shadow_batches += len(batches)
        self._real.write_shadow_cells(table, [ShadowWrite(cell, commit_ts) for cell in CellNames(batches, version)])


@contextmanager
def late_database(
    url: str,
    *,
    at_once: bool = False,
    fails: dict[int, OmidError] | None = None,
    commit: Callable[..., Any] | None = None,
    level: str | None = "cell",
) -> Iterator[tuple[Database, LateStore]]:
    """Over a store that writes late, with a table "t" of that conflict level; None: without."""
    parts = open_deployment(url)
    store = LateStore(parts.store, at_once=at_once, fails=fails)
    tso: Any = parts.tso if commit is None else Around(parts.tso, commit=commit)
    with Database(replace(parts, store=store, tso=tso), url=url) as database:
        assert database._core.pipelined_writes
        if level is not None:
            database.create_table("t", ["f", "g"], conflict_level=level, if_not_exists=True)
        yield database, store
