"""The whole API of the client by random programs, of three clients in two processes, against a model of dicts."""

from __future__ import annotations

import random
import shutil
import signal
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
from client_model import Client, Play, RemoteClient, options_of, serve
from forked_processes import Processes
from whole_model import WholePlay, soon

from portions import first
from pyomid.database import change_feed


def play(processes: Processes, folder: Path, seed: int, steps: int) -> Play:
    url = f"omid://{folder}?commitRetrySeconds=1"
    here, there = Pipe()
    clients = [Client(url, options_of(seed, 0)), Client(url, options_of(seed, 1)), RemoteClient(here)]
    other = processes.start(serve, there, url, options_of(seed, 2))
    try:
        played = Play(seed, clients)
        played.play(steps)
    finally:
        for client in clients:
            client.close()
    assert processes.finish(other) == 0
    return played


@pytest.fixture(autouse=True)
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """`options_of` sets those of the change feed."""
    for name in ("INSERTS_LEAST", "INSERTS_AT_ONCE", "ROWS_AT_ONCE"):
        monkeypatch.setattr(change_feed, name, getattr(change_feed, name))


@pytest.mark.process
@pytest.mark.parametrize("seed", first(1, [1, 2, 3]))
def test_a_random_program_of_many_clients_is_its_model(processes: Processes, tmp_path: Path, seed: int) -> None:
    played = play(processes, tmp_path / "db", seed, 300)
    assert played.done["refused"] > 0
    assert played.done["_commit"] > 10


def play_whole(processes: Processes, folder: Path, seed: int, steps: int) -> WholePlay:
    url = f"omid://{folder}/db?commitRetrySeconds=5"
    others: list[Any] = []

    def new_client() -> RemoteClient:
        """In a process of its own; the one before is killed."""
        for other in others:
            other.kill()
            assert processes.finish(other) == -signal.SIGKILL
        here, there = Pipe()
        others[:] = [processes.start(serve, there, url, options_of(seed, 2))]
        return RemoteClient(here)

    clients = [Client(url, options_of(seed, 0)), Client(url, options_of(seed, 1)), new_client()]
    try:
        played = WholePlay(seed, clients, folder, new_client)
        played.play(steps)
    finally:
        for client in clients:
            client.close()
    assert processes.finish(others[0]) == 0
    return played


@pytest.mark.process
@pytest.mark.parametrize("seed", first(1, range(1, 5)))
def test_a_random_program_amid_kills_and_backups_is_its_model(processes: Processes, tmp_path: Path, seed: int) -> None:
    played = play_whole(processes, tmp_path, seed, 500)
    assert played.done["_commit"] > 20, played.done
    assert played.done["kill_client"] > 0


@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_an_hour_of_random_programs_amid_kills_and_backups(processes: Processes, tmp_path: Path) -> None:
    seed, is_time = random.randrange(1 << 40), soon(3_600)
    while is_time():
        print("seed", seed)
        play_whole(processes, tmp_path / str(seed), seed, 1_500)
        shutil.rmtree(tmp_path / str(seed), ignore_errors=True)
        seed += 1


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_many_random_programs_of_many_clients_are_their_models(processes: Processes, tmp_path: Path) -> None:
    first = random.randrange(1 << 40)
    for seed in range(first, first + 200):
        print("seed", seed)
        play(processes, tmp_path / str(seed), seed, 600)
