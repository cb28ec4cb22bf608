"""The service whose flushes a server answers, with no thread between: they end in any order, late, or not at all.

Real sockets and a real folder; between them a table that answers as a server far away does.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from served_folder import SETTINGS, served, together, transact

from pyomid.errors import OmidError, Unavailable
from pyomid.ports import CommitTable, FlushEnded, FlushLoop
from pyomid.storage.embedded import EmbeddedCommitTable

pytestmark = [pytest.mark.fast, pytest.mark.timeout(120), pytest.mark.usefixtures("on_loop")]


class FarTable:
    """Makes the folder's table one that a loop asks and is answered by. `failures`: the share of flushes that end with
    an error, half of them although every entry is durable."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, failures: float = 0.0) -> None:
        self._chance = random.Random(7)
        self.failures = failures
        self.begun = self.failed = self.under_way = self.under_way_max = 0
        self.left = False
        far = self

        def submit(table: EmbeddedCommitTable, entries: NDArray[np.int64], ended: FlushEnded, loop: FlushLoop) -> None:
            far.begin(table, entries, ended)

        def leave_loop(table: EmbeddedCommitTable) -> None:
            far.left = True

        for name, what in (
            ("submit", submit),
            ("leave_loop", leave_loop),
            ("flushes_in_flight_max", CommitTable.flushes_in_flight_max),
        ):
            monkeypatch.setattr(EmbeddedCommitTable, name, what)

    def begin(self, table: EmbeddedCommitTable, entries: NDArray[np.int64], ended: FlushEnded) -> None:
        self.begun += 1
        self.under_way += 1
        self.under_way_max = max(self.under_way_max, self.under_way)
        delay_s = self._chance.choice((0.0, 0.001, 0.01))
        asyncio.get_running_loop().call_later(delay_s, self._end, table, entries.copy(), ended)

    def _end(self, table: EmbeddedCommitTable, entries: NDArray[np.int64], ended: FlushEnded) -> None:
        self.under_way -= 1
        fails = self._chance.random() < self.failures
        if fails and self._chance.random() < 0.5:
            table.flush(entries)
        if fails:
            self.failed += 1
            ended(Unavailable("no answer came"))
        else:
            ended(table.flush(entries))


@pytest.mark.parametrize("failures", [0.0, 0.3])
async def test_acknowledged_commits_are_durable_whatever_happens_to_their_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: float
) -> None:
    far = FarTable(monkeypatch, failures=failures)
    # A flush that fails is put out again after a pause, for so long.
    async with served(tmp_path / "db", monkeypatch, replace(SETTINGS, store_retry_s=60.0)) as each:
        done = await together(each, 25)
        while far.under_way_max < SETTINGS.flushes_in_flight_max:  # they go beside each other, when they meet
            done |= await together(each, 25)
        reader = EmbeddedCommitTable(tmp_path / "db", writable=False)
        assert reader.lookup(list(done)) == list(done.values())
        reader.close()
        assert not each.deaths
    assert far.left, "connections of the loop end with the service"
    assert (far.failed > 0) == (failures > 0)
    assert far.under_way == 0
    assert far.under_way_max == SETTINGS.flushes_in_flight_max


async def test_a_lone_client_is_answered_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = FarTable(monkeypatch)
    async with served(tmp_path / "db", monkeypatch) as each:
        done = await transact(each.session(), 20)
        assert far.begun >= 20, "one each at least: none went on a thread"
        assert each.table.lookup(list(done)) == list(done.values())


async def test_a_failed_flush_is_resubmitted_until_it_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a pause, with all that is done about a store that fails: there is no other way for it."""
    far = FarTable(monkeypatch, failures=1.0)
    async with served(tmp_path / "db", monkeypatch, replace(SETTINGS, store_retry_s=60.0)) as each:
        committing = asyncio.create_task(transact(each.session(), 1))
        while far.failed < 4:
            await asyncio.sleep(0.005)
        assert not committing.done()
        far.failures = 0.0
        done = await committing
        assert far.begun > far.failed
        assert each.table.lookup(list(done)) == list(done.values())
        assert not each.deaths


async def test_a_store_that_fails_for_too_long_ends_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FarTable(monkeypatch, failures=1.0)
    async with served(tmp_path / "db", monkeypatch) as each:
        committing = asyncio.create_task(transact(each.session(request_s=2), 1))
        await each.until_dead()
        assert "no answer came" in each.deaths[0]
        with pytest.raises(OmidError):
            await committing
