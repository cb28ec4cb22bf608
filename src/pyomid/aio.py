"""pyomid for asyncio.

async with await pyomid.aio.connect("omid:///path/to/folder") as db:
    async with db.begin() as tx:
        accounts = await tx.table("accounts")
        await accounts.put(b"alice", {b"f:balance": b"100"})
        async for key, row in accounts.scan(prefix=b"a"): ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyomid.client.aio import AsyncDatabase

__all__ = ["connect"]


async def connect(url: str, **options: Any) -> AsyncDatabase:
    """As `pyomid.connect`; an async context manager."""
    from pyomid.wiring import open_async_database

    return await open_async_database(url, **options)
