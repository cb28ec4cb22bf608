"""A folder's TSO, started by the first client that needs it, found by all others (T14).

    connect ── there ─────────────────────────────────────────────► done
       └ nobody ─► start lock ─► connect again ─► start the process, wait until it says that it serves ─► connect
                     └ taken: another client is starting it ─► a little later, from the beginning

The start lock only keeps a storm of clients from starting a storm of processes; who serves is decided by the TSO's
own lock alone. A client that was stopped while it held the start lock is overtaken after `START_LOCK_PATIENCE_S`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from pyomid.errors import Misuse, OmidError, Unavailable, by_code
from pyomid.ports import Clock, Sleep
from pyomid.tso.leadership import SOCKET_FILE, boot_clock, connect_in, holder, owner_text

START_LOCK_FILE: Final = "tso.start"
START_LOCK_PATIENCE_S: Final = 10.0
START_S_MAX: Final = 60.0
"""A cold start imports numpy from a busy disk; a store that is being upgraded takes its time."""
LOST_EXIT_CODE: Final = 75
"""EX_TEMPFAIL of sysexits.h: another process holds the folder's lock."""
ERROR_EXIT_CODE: Final = 3
"""The started process said on its standard error, as one line of JSON, why it cannot serve."""
POLL_S: Final = 0.01


def dial_folder(
    folder: Path,
    command: Sequence[str],
    *,
    timeout_s: float = START_S_MAX,
    clock: Clock = boot_clock,
    sleep: Sleep = time.sleep,
) -> socket.socket:
    """A connection to the folder's TSO, which `command` starts (and leaves running) where there is none.

    `Unavailable` after `timeout_s`; `Misuse` where it belongs to another user, or whatever the started process says.
    """
    deadline_s = clock() + timeout_s
    patience_s = clock() + START_LOCK_PATIENCE_S
    while True:
        connected = _try_connect(folder, deadline_s - clock())
        if connected is not None:
            return connected
        if clock() >= deadline_s:
            raise Unavailable(_nobody_answers(folder, timeout_s), folder=str(folder))
        with _start_lock(folder) as is_mine:
            if is_mine or clock() >= patience_s:
                connected = _try_connect(folder, deadline_s - clock())
                if connected is not None:
                    return connected
                if _start(command, deadline_s - clock()):
                    continue
        sleep(POLL_S * (1 + random.random()))


def ensure_running(folder: Path, command: Sequence[str], *, timeout_s: float = START_S_MAX) -> Path:
    """The folder's socket, with a TSO behind it that answered just now."""
    dial_folder(folder, command, timeout_s=timeout_s).close()
    return folder / SOCKET_FILE


def _try_connect(folder: Path, timeout_s: float) -> socket.socket | None:
    """None where nobody listens: no socket, or one that a killed process left behind."""
    try:
        return connect_in(folder, timeout_s=max(timeout_s, POLL_S))
    except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError, BlockingIOError, TimeoutError):
        if not folder.is_dir():
            raise Misuse(f"{folder} is not a folder", folder=str(folder)) from None
        return None
    except PermissionError as error:
        owner = owner_text(folder / SOCKET_FILE)
        raise Misuse(f"the TSO of {folder} belongs to {owner}, not to you", folder=str(folder)) from error


@contextlib.contextmanager
def _start_lock(folder: Path) -> Iterator[bool]:
    """True inside where the lock was free. The file stays; a process that dies loses the lock."""
    try:
        fd = os.open(folder / START_LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Misuse(f"folder {folder} is not writable: {error.strerror}", folder=str(folder)) from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)


def _start(command: Sequence[str], timeout_s: float) -> bool:
    """Runs `command`, which returns when its detached child serves. False where another TSO was faster."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        _, said = process.communicate(timeout=max(timeout_s, POLL_S))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        # Not read to its end: a child of it that was stopped halfway may hold the other side for ever.
        assert process.stderr is not None
        process.stderr.close()
        return False
    if process.returncode in (0, LOST_EXIT_CODE):
        return process.returncode == 0
    raise _error_said(said.decode("utf-8", "replace"), process.returncode)


def _error_said(said: str, code: int) -> OmidError:
    lines = said.strip().splitlines() or [""]
    if code == ERROR_EXIT_CODE:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            error = json.loads(lines[-1])
            return by_code(error["code"])(error["message"], **error["values"])
    return Unavailable(f"the TSO could not be started (exit {code}): {lines[-1]}", exit_code=code)


def error_line(error: OmidError) -> str:
    """What the started process writes for `_error_said` to read."""
    return json.dumps({"code": error.code, "message": error.message, "values": error.values}, default=str)


def _nobody_answers(folder: Path, timeout_s: float) -> str:
    pid = holder(folder).get("pid")
    held = f"; process {pid} held its lock last" if pid else ""
    return f"the TSO of {folder} did not answer within {timeout_s:.0f} s{held}"
