"""pyomid for asyncio.

async with pyomid.aio.connect("omid:///path/to/folder") as db:
    async with db.begin() as tx:
        accounts = await tx.table("accounts")
        await accounts.put(b"alice", {b"f:balance": b"100"})
        async for key, row in accounts.scan(prefix=b"a"): ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyomid.async_blocks import AwaitedBlock
from pyomid.lazy_names import lazy_names

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator, Sequence
    from typing import Any, Unpack

    from pyomid.config import Options
    from pyomid.database.async_database import AsyncDatabase, AsyncWatch
    from pyomid.database.async_transaction import AsyncTransaction
    from pyomid.database.tables.async_tables import AsyncTable, AsyncTypedTable
    from pyomid.observe import Observer

__all__ = ["AsyncDatabase", "AsyncTable", "AsyncTransaction", "AsyncTypedTable", "AsyncWatch", "connect"]


def connect(url: str, *, observers: Sequence[Observer] = (), **options: Unpack[Options]) -> Connecting:
    """Return a pending connection to the database at `url`. Write `db = await connect(url)`, or `async with
    connect(url) as db`, which closes the database at the end of the block. The function takes the same arguments as
    `pyomid.connect`."""
    from pyomid.wiring import open_async_database

    return Connecting(url, open_async_database(url, observers=observers, **options))


class Connecting(AwaitedBlock):
    """A pending connection, returned by `connect`: await it, or enter it by `async with`, which closes the database."""

    def __init__(self, url: str, connect: Coroutine[Any, Any, AsyncDatabase]) -> None:
        self._url = url
        self._connect = connect
        self._database: AsyncDatabase | None = None

    def __repr__(self) -> str:
        return f"<Connecting to {self._url}: await it, or enter it by `async with`>"

    def __await__(self) -> Generator[Any, None, AsyncDatabase]:
        return self._connect.__await__()

    async def __aenter__(self) -> AsyncDatabase:
        self._database = await self._connect
        return await self._database.__aenter__()

    async def __aexit__(self, *_: object) -> None:
        assert self._database is not None
        await self._database.close()


if not TYPE_CHECKING:  # as in `pyomid`
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "AsyncDatabase": "pyomid.database.async_database",
            "AsyncTable": "pyomid.database.tables.async_tables",
            "AsyncTransaction": "pyomid.database.async_transaction",
            "AsyncTypedTable": "pyomid.database.tables.async_tables",
            "AsyncWatch": "pyomid.database.async_database",
        },
    )
