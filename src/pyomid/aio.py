"""pyomid for asyncio.

async with await pyomid.aio.connect("omid:///path/to/folder") as db:
    async with db.begin() as tx:
        accounts = await tx.table("accounts")
        await accounts.put(b"alice", {b"f:balance": b"100"})
        async for key, row in accounts.scan(prefix=b"a"): ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyomid.lazy_names import lazy_names

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from pyomid.config import Options
    from pyomid.database.async_database import AsyncDatabase, AsyncTable, AsyncTransaction, AsyncTypedTable, AsyncWatch
    from pyomid.observe import Observer

__all__ = ["AsyncDatabase", "AsyncTable", "AsyncTransaction", "AsyncTypedTable", "AsyncWatch", "connect"]


async def connect(url: str, *, observers: Sequence[Observer] = (), **options: Unpack[Options]) -> AsyncDatabase:
    """Return the database at `url` for asyncio, an async context manager. Arguments as of `pyomid.connect`."""
    from pyomid.wiring import open_async_database

    return await open_async_database(url, observers=observers, **options)


if not TYPE_CHECKING:  # as in `pyomid`
    __getattr__, __dir__ = lazy_names(
        __name__, {name: "pyomid.database.async_database" for name in __all__ if name.startswith("Async")}
    )
