"""A `LoopClient` and its connections for tests, awaited by tasks."""

from __future__ import annotations

import asyncio
import ssl
from typing import TypeVar

from pyomid.coroutines import Routine
from pyomid.omid.hbase.loop_client import LoopClient, LoopConnection, PendingAnswer
from pyomid.omid.hbase.regions.calls import Answer
from pyomid.omid.hbase.rpc.frames import CLIENT, Address
from pyomid.omid.hbase.rpc.handshake import Handshake

T = TypeVar("T")


async def opened_on_loop(address: Address, handshake: Handshake, tls: ssl.SSLContext | None = None) -> LoopConnection:
    return await asyncio.to_thread(LoopConnection, address, CLIENT, handshake, connect_timeout_s=30.0, tls=tls)


async def answer_of(pending: PendingAnswer, timeout_s: float) -> Answer:
    if pending.answer is None:
        answered = asyncio.Event()
        pending.when_answered(lambda _: answered.set(), timeout_s=timeout_s)
        await answered.wait()
    assert pending.answer is not None
    return pending.answer


async def run_on_loop(client: LoopClient, steps: Routine[T]) -> T:
    ended: asyncio.Future[T | Exception] = asyncio.get_running_loop().create_future()
    client.begin(steps, ended.set_result)
    outcome = await ended
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
