"""A database that was dropped and made anew is not taken for the former one by a client that lived on."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

import pyomid
from pyomid.client.session.async_session import AsyncTsoSession, ConnectedSocket
from pyomid.client.session.blocking import TsoSession
from pyomid.client.session.request_retry import ConnectionBroken
from pyomid.config import Settings
from pyomid.errors import Misuse
from pyomid.wiring import folder_connector


class Dial:
    """To whichever folder's TSO has the address now."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self) -> socket.socket:
        return folder_connector(self.folder, Settings(tso_idle_exit_seconds=1))()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    made = [tmp_path_factory.mktemp(name) / "db" for name in ("former", "present")]
    for folder in made:
        pyomid.connect(f"omid://{folder}?tsoIdleExitSeconds=1").close()
    return made


def test_a_session_meets_its_own_database_again(folders: list[Path]) -> None:
    session = TsoSession(Dial(folders[0]))
    for _ in range(2):
        session.begin()
        assert session._connection is not None
        session._connection.close(ConnectionBroken("cut off", sent=False))
    session.close()


def test_a_session_refuses_a_database_in_place_of_its_own(folders: list[Path]) -> None:
    dial = Dial(folders[0])
    session = TsoSession(dial)
    session.begin()
    dial.folder = folders[1]
    assert session._connection is not None
    session._connection.close(ConnectionBroken("cut off", sent=False))
    for _ in range(2):
        with pytest.raises(Misuse, match=r"was dropped.*connect again"):
            session.begin()
    session.close()


def test_an_asyncio_session_refuses_it_too(folders: list[Path]) -> None:
    dial = Dial(folders[0])

    async def go() -> None:
        session = AsyncTsoSession(lambda: asyncio.to_thread(lambda: ConnectedSocket(dial())))
        await session.begin()
        dial.folder = folders[1]
        assert session._connection is not None
        session._connection.close(ConnectionBroken("cut off", sent=False))
        with pytest.raises(Misuse, match=r"was dropped.*connect again"):
            await session.begin()
        await session.close()

    asyncio.run(go())
