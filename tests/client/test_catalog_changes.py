"""Every call that changes a table, broken off at each of its steps: refused, its answer lost, interrupted.

A step is one look into the catalog, one change of it, one fence, or one change of the store's tables. An interrupted
call leaves what a killed process leaves: only `OmidError` is cleaned up after. `tests/process/test_catalog_kills.py`
kills real processes.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from client_faults import database_with

import pyomid
from catalog_changes import CHANGES, Change, check, make, nothing_is_left
from pyomid.database.database import Database
from pyomid.database.upkeep.unfinished import finish_changes
from pyomid.errors import ConflictError, Unavailable
from pyomid.types import TableState

pytestmark = pytest.mark.fast

STEPS = {
    "catalog": ("entry", "table", "change_entry", "remove_entry"),
    "tso": ("fence", "begin", "commit"),
    "store": ("create_table", "withdraw_table", "drop_table"),
}


class Step:
    """Breaks a client off at its n-th step."""

    def __init__(self) -> None:
        self.left = -1
        self.error: BaseException = KeyboardInterrupt()
        self.is_after = False
        self.hit = ""

    def __call__(self, name: str) -> Callable[..., Any]:
        def step(real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            if self.left != 0:
                return real(*args, **kwargs)
            self.hit = name
            if self.is_after:
                real(*args, **kwargs)
            raise self.error

        return step

    @contextlib.contextmanager
    def armed(self, at: int, error: BaseException, is_after: bool) -> Iterator[None]:
        self.left, self.error, self.is_after, self.hit = at, error, is_after, ""
        try:
            yield
        finally:
            self.left = -1


def marks_of(store: str, how: str) -> list[pytest.MarkDecorator]:
    if store == "memory":
        return []
    return [pytest.mark.long if how in ("refused", "interrupted") else pytest.mark.soak]


@pytest.mark.parametrize(
    ("url", "how", "change"),
    [
        pytest.param(
            store,
            how,
            change,
            id=f"{store}-{change.name}-{how}",
            marks=marks_of(store, how),
        )
        for store in ("memory", "embedded")
        for how in ("refused", "answer lost", "interrupted before", "interrupted")
        for change in CHANGES
        if store == "embedded" or not change.needs_limits
    ],
    indirect=["url"],
)
def test_a_change_that_is_broken_off_is_ended_by_the_same_call(url: str, change: Change, how: str) -> None:
    step = Step()
    around = {part: {name: step(f"{part}.{name}") for name in names} for part, names in STEPS.items()}
    error = Unavailable("on purpose") if how in ("refused", "answer lost") else KeyboardInterrupt()
    with pyomid.connect(url) as db, database_with(url, **around) as broken:
        for at in itertools.count(1):
            table = f"t{at}"
            make(db, table)
            change.prepare(db, table)
            try:
                with step.armed(at, error, is_after=how in ("answer lost", "interrupted")):
                    with contextlib.suppress(Unavailable, KeyboardInterrupt):
                        change.call(broken, table)
                check(db, table, change, end_by=(db, broken)[at % 2])
            except BaseException as failed:
                failed.add_note(f"step {at}: {step.hit}")
                raise
            if not step.hit:
                break
    assert at > 2


def test_changes_end_beside_upkeep_that_takes_each_for_a_dead_clients(memory_url: str) -> None:
    stop = threading.Event()

    def end_all(db: Database) -> int:
        ended = 0
        while not stop.is_set():
            ended += len(finish_changes(db._core.deployment))
        return ended

    with pyomid.connect(memory_url) as db, pyomid.connect(memory_url) as other, ThreadPoolExecutor(2) as pool:
        upkeep = [pool.submit(end_all, other) for _ in range(2)]
        try:
            for number, change in enumerate(CHANGES):
                if not change.needs_limits:
                    table = f"t{number}"
                    make(db, table)
                    change.prepare(db, table)
                    change.call(db, table)
                    assert change.is_done(db, table), change.name
        finally:
            stop.set()
        assert [done.exception() for done in upkeep] == [None, None]
        nothing_is_left(db)


def test_a_transaction_that_a_late_fence_of_a_drop_refuses_may_rerun(db: Database) -> None:
    """K8. Upkeep finds a drop under way, and stalls before its fence; meanwhile the drop ends, the table is created
    again, and a transaction begins. The fence refuses that one, and the drop leaves the new table."""
    session = db._core.deployment.tso
    begun: list[pyomid.Transaction] = []

    def upkeep_stalls(real: Callable[[int], int], number: int) -> int:
        patched.undo()
        db.drop_table("u")
        db.create_table("u", families=["f"])
        begun.append(db.begin())
        begun[0].table("u").put(b"k", {b"f:x": b"1"})
        return real(number)

    db.create_table("u", families=["f"])
    catalog = db._core.deployment.catalog
    present = catalog.entry("u")
    assert present is not None
    assert catalog.change_entry(present, replace(present, state=TableState.DROPPING))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(session, "fence", partial(upkeep_stalls, session.fence))
        assert finish_changes(db._core.deployment) == ["finished the drop of table 'u'"]
    with pytest.raises(ConflictError, match="fenced"):
        begun[0].commit()
    with db.begin() as again:
        again.table("u").put(b"k", {b"f:x": b"2"})
    with db.snapshot() as after:
        assert dict(after.table("u").scan()) == {b"k": {b"f:x": b"2"}}
