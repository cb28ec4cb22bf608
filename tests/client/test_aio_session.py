"""The asyncio session: cancellations, dials and threads that are lacking come to whoever they belong to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import pyomid.aio
from pyomid.client.aio.database import AsyncDatabase
from pyomid.client.session import aio
from pyomid.client.session.aio import AsyncTsoSession
from pyomid.client.session.request_retry import ConnectionBroken

pytestmark = [pytest.mark.fast, pytest.mark.timeout(60)]


def with_session(url: str, body: Callable[[AsyncDatabase, AsyncTsoSession], Awaitable[None]]) -> None:
    async def main() -> None:
        async with await pyomid.aio.connect(url) as db:
            assert db._session is not None
            await db._session.begin()
            await body(db, db._session)

    asyncio.run(main())


@pytest.mark.parametrize("dials", [False, True], ids=["connected", "dialling"])
def test_a_cancellation_beside_the_answer_is_not_lost(
    embedded_url: str, monkeypatch: pytest.MonkeyPatch, dials: bool
) -> None:
    """The answer is there, the task has not resumed yet."""

    async def body(_: AsyncDatabase, session: AsyncTsoSession) -> None:
        if dials:
            assert session._connection is not None
            session._connection.close(ConnectionBroken("closed by the test", sent=False))
        task = asyncio.create_task(session.begin())
        hear = aio._Connection.data_received

        def hear_and_cancel(connection: aio._Connection, data: bytes) -> None:
            hear(connection, data)
            task.cancel()

        monkeypatch.setattr(aio._Connection, "data_received", hear_and_cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
        monkeypatch.undo()
        await session.begin()

    with_session(embedded_url, body)
