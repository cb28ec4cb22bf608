"""A database in memory whose TSO is a service behind a real socket, as over HBase, in a thread of this process."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

from pyomid.config import Settings
from pyomid.database.async_database import AsyncDatabase
from pyomid.database.database import Database
from pyomid.omid.client.async_session import AsyncTsoSession, ConnectedSocket
from pyomid.omid.client.blocking import TsoSession
from pyomid.omid.memory import MemoryCatalog, MemoryCommitTable, MemoryLeaderState, MemoryStore
from pyomid.omid.oracle.settings import TsoSettings
from pyomid.omid.oracle.status_oracle import BucketMap
from pyomid.omid.tso.service import TsoService
from pyomid.omid.tso.startup import take_over_and_build
from pyomid.omid.tso.store_calls import TsoStores
from pyomid.ports import Deployment, boot_clock

WAIT_S = 60.0
SETTINGS = TsoSettings(conflict_map_entries=1 << 16)


@contextmanager
def served_deployment() -> Iterator[Deployment]:
    """Its sessions are closed by the database that is opened over it; `loop_session` returns a new one each time."""
    stores = TsoStores(MemoryCommitTable(), MemoryLeaderState(), MemoryCatalog())
    machine = take_over_and_build(stores, SETTINGS, BucketMap(SETTINGS.conflict_map_entries))
    deaths: list[str] = []
    service = TsoService(machine, stores, clock=boot_clock, die=deaths.append)
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    started, loops = threading.Event(), list[asyncio.AbstractEventLoop]()

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        loops[0].call_soon(started.set)
        await service.run([(listener, None)])
        await service.drain(drain_s_max=WAIT_S)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert started.wait(WAIT_S)

    async def dial() -> ConnectedSocket:
        return ConnectedSocket(await asyncio.to_thread(socket.create_connection, address))

    session = TsoSession(lambda: socket.create_connection(address), clock=boot_clock, request_s=5.0, retry_s=60.0)

    def loop_session() -> AsyncTsoSession:
        return AsyncTsoSession(dial, request_s=5.0, retry_s=60.0, known=session.known)

    try:
        yield replace(
            Deployment(
                MemoryStore(), stores.commit_table, stores.leader_state, stores.catalog, session, Settings(), boot_clock
            ),
            loop_session=loop_session,
        )
    finally:
        loops[0].call_soon_threadsafe(service.stop)
        thread.join(WAIT_S)
    assert not deaths


@contextmanager
def served_database() -> Iterator[Database]:
    with served_deployment() as deployment, Database(deployment) as database:
        yield database


@asynccontextmanager
async def served_async_database() -> AsyncIterator[AsyncDatabase]:
    with served_deployment() as deployment:
        assert deployment.loop_session is not None
        async with AsyncDatabase(Database(deployment), deployment.loop_session()) as database:
            yield database
