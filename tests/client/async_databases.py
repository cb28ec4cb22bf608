"""Databases of the asyncio client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pyomid.aio
from pyomid.database.async_database import AsyncDatabase


@asynccontextmanager
async def database_at(url: str, **options: Any) -> AsyncIterator[AsyncDatabase]:
    """With the table "t"."""
    async with await pyomid.aio.connect(url, **options) as db:
        await db.create_table("t", families=["f"], if_not_exists=True)
        yield db
