"""The asyncio session gives the blocking session's guarantees."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from service_process import served

from pyomid.errors import Misuse, OmidError, SnapshotTooOld, Unavailable
from pyomid.omid.client.async_session import AsyncTsoSession, ConnectedSocket
from pyomid.omid.wire.messages import (
    Done,
    EndLease,
    Fence,
    FenceReply,
    GrantLease,
    LeaseReply,
    RenewLease,
    Seal,
    SealReply,
)
from pyomid.tls import tcp_connector
from pyomid.types import CommitRequest, SealOutcome

pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]


def session(address: str, **more: float) -> AsyncTsoSession:
    async def dial() -> ConnectedSocket:
        return ConnectedSocket(await asyncio.to_thread(tcp_connector(address)))

    return AsyncTsoSession(dial, **{"request_s": 5.0, "retry_s": 5.0, **more})


async def test_leases_seals_and_errors(tmp_path: Path) -> None:
    with served(tmp_path) as running:
        tso = session(running.address)
        start_ts = (await tso.begin()).start_ts
        assert (await tso.ask(GrantLease(start_ts, 5.0), LeaseReply)).term_s == 5.0
        assert (await tso.ask(RenewLease(start_ts), LeaseReply)).term_s == 5.0
        await tso.ask(EndLease(start_ts), Done)
        with pytest.raises(SnapshotTooOld):
            await tso.ask(RenewLease(start_ts), LeaseReply)
        assert (await tso.ask(Seal((start_ts,)), SealReply)).outcomes == (SealOutcome(True),)
        assert not (await tso.commit(CommitRequest(start_ts, (1,)))).committed
        assert (await tso.ask(Fence(7), FenceReply)).fence_ts > start_ts
        with pytest.raises(Misuse, match="not_before"):
            await tso.begin(not_before=1 << 62)
        await tso.close()
        with pytest.raises(Misuse, match="closed"):
            await tso.begin()


async def test_a_dead_tso_raises_unavailable_or_outcome_unknown(tmp_path: Path) -> None:
    with served(tmp_path) as running:
        tso = session(running.address, retry_s=0.3)
        start_ts = (await tso.begin()).start_ts
        running.process.kill()
        running.process.wait()
        with pytest.raises(OmidError):
            await tso.commit(CommitRequest(start_ts, (1,)))
        with pytest.raises(Unavailable):
            await tso.begin()
        await tso.close()
