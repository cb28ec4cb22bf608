"""pyomid for asyncio.

async with await pyomid.aio.connect("omid:///path/to/folder") as db:
    async with db.begin() as tx:
        accounts = await tx.table("accounts")
        await accounts.put(b"alice", {b"f:balance": b"100"})
        async for key, row in accounts.scan(prefix=b"a"): ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyomid.database.async_database import AsyncDatabase, AsyncTable, AsyncTransaction, AsyncTypedTable, AsyncWatch
    from pyomid.observe import Observer

__all__ = ["AsyncDatabase", "AsyncTable", "AsyncTransaction", "AsyncTypedTable", "AsyncWatch", "connect"]


async def connect(url: str, *, observers: Sequence[Observer] = (), **options: Any) -> AsyncDatabase:
    """Return the database at `url` for asyncio, an async context manager. Arguments as of `pyomid.connect`."""
    from pyomid.wiring import open_async_database

    return await open_async_database(url, observers=observers, **options)


_LATE: Final = frozenset({"AsyncDatabase", "AsyncTable", "AsyncTransaction", "AsyncTypedTable", "AsyncWatch"})
"""As in `pyomid`: their module is loaded at first use."""


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'pyomid.aio' has no attribute {name!r}")
    from pyomid.database import async_database

    return getattr(async_database, name)
