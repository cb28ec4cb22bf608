"""A folder's TSO: clients start it on demand, only one runs, and after any death nothing acknowledged is lost."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from service_process import cell, is_alive, kill_tso, served, tso_pid

from pyomid.client.session.blocking import TsoSession
from pyomid.config import Settings
from pyomid.errors import Misuse, OmidError, Unavailable
from pyomid.oracle.machine import TsoSettings
from pyomid.server.launcher import connect_to_folder
from pyomid.server.leadership import DOUBT_EXIT_CODE, SOCKET_FILE, FolderLock
from pyomid.storage.embedded import EmbeddedCommitTable, EmbeddedLeaderState, open_folder
from pyomid.types import CommitRequest
from pyomid.wiring import tso_command

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

SessionOf = Callable[..., TsoSession]


def commit_one(tso: TsoSession) -> tuple[int, int]:
    start_ts = tso.begin().start_ts
    reply = tso.commit(CommitRequest(start_ts, (cell(start_ts),)))
    return start_ts, reply.commit_ts


def test_t14_a_start_storm_ends_with_one_tso(folder: Path) -> None:
    """Eight processes at once, nobody serving."""
    program = (
        "import sys; from pathlib import Path; from pyomid.config import Settings;"
        "from pyomid.client.session.blocking import TsoSession; from pyomid.wiring import folder_connector;"
        "tso = TsoSession(folder_connector(Path(sys.argv[1]), Settings(tso_idle_exit_seconds=20.0)), retry_s=60.0);"
        "print(tso.status().epoch, tso.begin().start_ts)"
    )
    clients = [
        subprocess.Popen([sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    said = [client.communicate(timeout=120)[0].split() for client in clients]
    assert [client.returncode for client in clients] == [0] * 8
    assert len({epoch for epoch, _ in said}) == 1
    assert len({start for _, start in said}) == 8


def test_a_folder_with_a_path_too_long_for_a_socket_works(tmp_path: Path, session_of: SessionOf) -> None:
    long = tmp_path / ("a" * 100) / ("b" * 100)
    assert len(str(long / SOCKET_FILE)) > 107
    open_folder(long)
    commit_one(session_of(long))
    kill_tso(long)


def test_t4_a_tso_replaced_while_suspended_exits_without_a_reply(folder: Path, session_of: SessionOf) -> None:
    tso = session_of(folder, request_s=30.0)
    before = tso.begin()
    row = EmbeddedLeaderState(folder, writable=True)
    # Inside a write of ours, or it could be stopped inside one of its own, and LMDB has one writer at a time (C6).
    pid = row._environment.write(lambda _: kill_tso(folder, signal.SIGSTOP))
    state = row.read()
    assert row.take_over(expected=state.epoch, epoch=state.ceiling, ceiling=state.ceiling + 10**10)
    row.close()
    answers: list[object] = []

    def ask() -> None:
        try:
            answers.append(tso.begin())
        except OmidError as error:
            answers.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(1.5)  # longer than the service's stall margin: it must read the leader state before it answers
    os.kill(pid, signal.SIGCONT)
    thread.join(timeout=60)
    assert not is_alive(pid)
    [answer] = answers
    assert answer.start_ts > state.ceiling, "the next TSO's, not the stopped one's"  # type: ignore[attr-defined]
    assert answer.epoch > before.epoch  # type: ignore[attr-defined]
    assert f"holds {state.ceiling}" in (folder / "tso.log").read_text()


def test_a_tso_suspended_but_not_replaced_continues(folder: Path, session_of: SessionOf) -> None:
    tso = session_of(folder, request_s=30.0)
    commit_one(tso)
    pid = kill_tso(folder, signal.SIGSTOP)
    timer = threading.Timer(2.0, os.kill, (pid, signal.SIGCONT))
    timer.start()
    commit_one(tso)
    timer.join()
    assert is_alive(pid)


def test_t7_commits_sent_to_a_stopped_tso_are_found_or_aborted_by_their_retries_never_both(
    folder: Path, session_of: SessionOf
) -> None:
    tso = session_of(folder, request_s=0.3)
    starts = [tso.begin().start_ts for _ in range(6)]
    pid = kill_tso(folder, signal.SIGSTOP)
    answers: dict[int, int] = {}

    def commit(start_ts: int) -> None:
        answers[start_ts] = tso.commit(CommitRequest(start_ts, (cell(start_ts),))).commit_ts

    threads = [threading.Thread(target=commit, args=(start_ts,)) for start_ts in starts]
    for thread in threads:
        thread.start()
    time.sleep(1.5)
    os.kill(pid, signal.SIGCONT)
    for thread in threads:
        thread.join()
    table = EmbeddedCommitTable(folder, writable=False)
    for start_ts, found in zip(starts, table.lookup(starts), strict=True):
        assert answers[start_ts] == max(found, 0)
    table.close()


def test_two_folders_are_two_databases(tmp_path: Path, session_of: SessionOf) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for path in folders:
        open_folder(path)
        session_of(path).begin()
    assert tso_pid(folders[0]) != tso_pid(folders[1])
    for path in folders:
        kill_tso(path)


def test_t14_no_idle_exit_with_a_connection_open_or_a_lease_live(folder: Path, session_of: SessionOf) -> None:
    tso = session_of(folder, tso_idle_exit_seconds=0.5, lease_seconds=300.0)
    start_ts = tso.begin().start_ts
    pid = tso_pid(folder)
    time.sleep(1.5)
    assert is_alive(pid), "a connection is open"
    tso.grant_lease(start_ts)
    tso.close()
    time.sleep(1.5)
    assert is_alive(pid), "a lease is live"
    again = session_of(folder)
    again.end_lease(start_ts)
    again.close()
    for _ in range(500):
        if not is_alive(pid):
            break
        time.sleep(0.02)
    assert not is_alive(pid)
    assert not (folder / SOCKET_FILE).exists()
    commit_one(session_of(folder))
    assert tso_pid(folder) != pid


def test_t14_a_new_tso_waits_for_its_first_client(folder: Path, session_of: SessionOf) -> None:
    """On a loaded machine the client that started it connects late: it would exit, be started again, and exit."""
    subprocess.run(tso_command(folder, Settings(tso_idle_exit_seconds=0.1)), check=True)
    while not (folder / SOCKET_FILE).exists():
        time.sleep(0.02)
    pid = tso_pid(folder)
    time.sleep(1.0)
    session_of(folder).begin()
    assert tso_pid(folder) == pid


@pytest.mark.long
def test_t14_a_tsos_own_work_does_not_prevent_an_idle_exit(folder: Path, session_of: SessionOf) -> None:
    """It looks at the catalog every few seconds: an idle time longer than that must pass all the same."""
    idle_s = TsoSettings().tables_interval_s + 1.0
    tso = session_of(folder, tso_idle_exit_seconds=idle_s)
    tso.begin()
    pid = tso_pid(folder)
    tso.close()
    deadline_s = time.monotonic() + 3 * idle_s
    while is_alive(pid) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not is_alive(pid)


def test_leases_and_everything_acknowledged_survive_sigterm(folder: Path, session_of: SessionOf) -> None:
    tso = session_of(folder)
    start_ts, commit_ts = commit_one(tso)
    job = tso.begin().start_ts
    tso.grant_lease(job)
    old = kill_tso(folder, signal.SIGTERM)
    while is_alive(old):
        time.sleep(0.01)
    assert tso.renew_lease(job) > 0
    assert tso_pid(folder) != old
    assert EmbeddedCommitTable(folder, writable=False).lookup([start_ts]) == [commit_ts]


def test_a_forked_child_gets_a_connection_of_its_own(folder: Path, session_of: SessionOf) -> None:
    tso = session_of(folder)
    tso.begin()
    read_end, write_end = os.pipe()
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                starts = [commit_one(tso)[0] for _ in range(20)]
                os.write(write_end, (" ".join(map(str, starts)) + "\n").encode())
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    mine = [commit_one(tso)[0] for _ in range(50)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        theirs = [int(number) for number in pipe.read().split()]
    assert len(set(mine + theirs)) == len(mine) + 80


def test_starting_a_second_tso_names_the_one_that_serves(folder: Path, session_of: SessionOf) -> None:
    session_of(folder).begin()
    with pytest.raises(AssertionError, match=f"exit 75: .*process {tso_pid(folder)} is the TSO"):
        with served(folder.parent, store=f"omid://{folder}"):
            pass


def test_a_missing_or_unknown_folder_has_a_clear_error(tmp_path: Path, folder: Path) -> None:
    command = tso_command(folder, Settings())
    with pytest.raises(Misuse, match="not a folder"):
        connect_to_folder(tmp_path / "missing", tso_command(tmp_path / "missing", Settings()), timeout_s=20)
    (folder / "LAYOUT").write_text("pyomid embedded layout 99\n")
    with pytest.raises(Misuse, match="99"):
        connect_to_folder(folder, command, timeout_s=20)


def test_the_error_names_a_lock_holder_that_does_not_answer(folder: Path) -> None:
    lock = FolderLock(folder)
    assert lock.acquire()
    with pytest.raises(Unavailable, match=f"process {os.getpid()} holds its lock"):
        connect_to_folder(folder, tso_command(folder, Settings()), timeout_s=2)
    lock.release()
    second = FolderLock(folder)
    assert second.acquire(), "the file stays, the lock does not"
    second.release()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
def test_another_users_tso_has_a_clear_error(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    open_folder(folder)
    for path in [folder, *folder.parents]:
        if path.stat().st_uid == os.getuid() and not path.stat().st_mode & stat.S_ISVTX and path.is_relative_to("/tmp"):
            path.chmod(0o755)
    lock = FolderLock(folder)
    assert lock.acquire()
    listener = lock.listen()
    program = (
        "import os, sys; from pathlib import Path; from pyomid.server.launcher import connect_to_folder;"
        "from pyomid.errors import Misuse\n"
        "os.setuid(65534)\n"
        "try: connect_to_folder(Path(sys.argv[1]), ['false'], timeout_s=5)\n"
        "except Misuse as error: print(error)"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, timeout=60)
    assert "belongs to user root" in ended.stdout, ended
    listener.close()
    lock.release()


def test_dying_in_doubt_has_an_exit_code_of_its_own() -> None:
    program = "from pyomid.server.leadership import die_now; die_now('test')"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == DOUBT_EXIT_CODE
