"""Connects to a folder's TSO, which the first client starts and all others find (T14).

    connect ── a TSO accepts ─────────────────────────────────────► done
       └ none ─► start lock ─► connect again ─► start a process, wait until it serves ─► connect
                   └ taken: another client is starting it ─► retry from the beginning after a pause

The start lock only keeps many clients from starting many processes; the TSO's own lock alone decides which process
serves. Clients ignore the start lock after `START_LOCK_PATIENCE_S`: its holder may have been stopped.

The start lock's file records when a TSO was started last, and how many in a row died soon after their start. All
clients together wait between two starts, twice as long after each such failure. After `PATIENT_STARTS` failures,
clients raise an error that says why the last TSO died.
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
from typing import Any, Final

from pyomid.errors import Misuse, OmidError, Unavailable, by_code
from pyomid.ports import Clock, Sleep, boot_clock
from pyomid.server.leadership import SOCKET_FILE, holder, is_held, owner_text
from pyomid.server.logs import LOG_FILE, append_text
from pyomid.system import is_shared, occupy_standard, open_own, peer_uid, process_text, socket_path, user_text

START_LOCK_FILE: Final = "tso.start"
START_LOCK_PATIENCE_S: Final = 10.0
PACE_S: Final = 0.1
PACE_S_MAX: Final = 5.0
"""The shortest and the longest pause after a failed start, for all clients together."""
SHORT_LIFE_S: Final = 10.0
"""A TSO that died sooner counts as a failed start."""
PATIENT_STARTS: Final = 4
"""After fewer failed starts in a row, a client waits for the next start instead of raising an error."""
START_S_MAX: Final = 60.0
"""A cold start may import numpy from a busy disk."""
LOST_EXIT_CODE: Final = 75
"""EX_TEMPFAIL of sysexits.h: another process holds the folder's lock."""
ERROR_EXIT_CODE: Final = 3
"""The started process cannot serve; the last line of its standard error is its error as JSON."""
POLL_S: Final = 0.01
_STARTS_BYTES: Final = 4096
_SHORT_LIVES_MAX: Final = 1000
_MESSAGE_CHARS_MAX: Final = 500


def connect_to_folder(
    folder: Path,
    command: Sequence[str],
    *,
    timeout_s: float = START_S_MAX,
    clock: Clock = boot_clock,
    sleep: Sleep = time.sleep,
) -> socket.socket:
    """Return a connection to the folder's TSO. If none runs, `command` starts one and leaves it running.

    `Unavailable` after `timeout_s`; `Misuse` if the TSO belongs to another user; otherwise the error that the started
    process reports.
    """
    deadline_s = clock() + timeout_s
    patience_s = clock() + START_LOCK_PATIENCE_S
    while True:
        connected = _try_connect(folder, deadline_s - clock())
        if connected is not None:
            return connected
        if clock() >= deadline_s:
            raise Unavailable(
                f"the TSO of {folder} did not answer within {timeout_s:.0f} s; {_last_holder(folder)}",
                folder=str(folder),
            )
        with _start_lock(folder) as (starts, is_mine):
            if is_mine or clock() >= patience_s:
                connected = _try_connect(folder, deadline_s - clock())
                if connected is not None:
                    return connected
                if starts.may_begin(clock()) and _start_counted(folder, command, starts, clock, deadline_s):
                    continue
        sleep(POLL_S * (1 + random.random()))


def _try_connect(folder: Path, timeout_s: float) -> socket.socket | None:
    """Return a connection; None if no process listens (there is no socket, or a killed process left it)."""
    try:
        return connect_in(folder, timeout_s=max(timeout_s, POLL_S))
    except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError, BlockingIOError, TimeoutError):
        if not folder.is_dir():
            raise Misuse(f"{folder} is not a folder", folder=str(folder)) from None
        return None
    except PermissionError as error:
        owner = owner_text(folder / SOCKET_FILE)
        raise Misuse(f"the TSO of {folder} belongs to {owner}, not to you", folder=str(folder)) from error


def connect_in(folder: Path, *, timeout_s: float) -> socket.socket:
    """Return a connection to the folder's TSO. Raises the system's `OSError`, for instance if no TSO listens; `Misuse`
    if the listening process belongs to another user who does not share the folder."""
    occupy_standard()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        with _opened(folder) as fd, socket_path(fd, folder, SOCKET_FILE) as path:
            sock.connect(path)
        _check_peer(sock, folder)
    except BaseException:
        sock.close()
        raise
    return sock


def _check_peer(sock: socket.socket, folder: Path) -> None:
    uid = peer_uid(sock, folder / SOCKET_FILE)
    if uid != os.geteuid() and not is_shared(folder):
        raise Misuse(f"the TSO of {folder} belongs to {user_text(uid)}, not to you", folder=str(folder))


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _start_lock(folder: Path) -> Iterator[tuple[_Starts, bool]]:
    """Yield the recorded starts, and whether this process got the lock. The file stays; death releases the lock."""
    try:
        fd = open_own(folder / START_LOCK_FILE, os.O_RDWR | os.O_CREAT, shared=is_shared(folder))
    except OSError as error:
        raise Misuse(f"folder {folder} is not writable: {error.strerror}", folder=str(folder)) from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield _Starts(folder, fd), False
        else:
            yield _Starts(folder, fd), True
    finally:
        os.close(fd)


class _Starts:
    """The last starts, as recorded in the start lock's file. A malformed file counts as empty."""

    def __init__(self, folder: Path, fd: int) -> None:
        self._folder = folder
        self._fd = fd
        self._last_s, self._short_lives = 0.0, 0
        self._failure: dict[str, Any] = {}
        with contextlib.suppress(ArithmeticError, ValueError, KeyError, TypeError):
            record = json.loads(os.pread(fd, _STARTS_BYTES, 0))
            self._last_s, self._short_lives = float(record["last_s"]), min(int(record["short_lives"]), _SHORT_LIVES_MAX)
            self._failure = dict(record["failure"])

    def may_begin(self, now_s: float) -> bool:
        """Return whether the next start is due. If not, after `PATIENT_STARTS` failures, raise the last one's error."""
        ended_normally = not self._failure and holder(self._folder).get("ended")
        if ended_normally or not 0 <= now_s - self._last_s < SHORT_LIFE_S:
            self._short_lives = 0
        if not self._short_lives or now_s >= self._last_s + min(PACE_S * 2**self._short_lives, PACE_S_MAX):
            return True
        if self._short_lives >= PATIENT_STARTS:
            raise self._last_error()
        return False

    def begun(self, now_s: float) -> None:
        """Record a start. It counts as a short life until `SHORT_LIFE_S` have passed."""
        self._last_s, self._short_lives, self._failure = now_s, self._short_lives + 1, {}
        self._write()

    def failed(self, error: OmidError) -> None:
        self._failure = {"code": error.code, "message": error.message[:_MESSAGE_CHARS_MAX]}
        self._write()

    def _last_error(self) -> OmidError:
        count = f"{self._short_lives} in a row died soon after their start"
        if self._failure:
            kind = by_code(str(self._failure.get("code")))
            return kind(f"{self._failure.get('message')} ({count})", folder=str(self._folder))
        return Unavailable(
            f"the TSO of {self._folder} does not stay alive: {count}; {_last_holder(self._folder)}",
            folder=str(self._folder),
        )

    def _write(self) -> None:
        record = {"last_s": self._last_s, "short_lives": self._short_lives, "failure": self._failure}
        with contextlib.suppress(OSError):  # on a full disk, starts are not counted
            os.pwrite(self._fd, json.dumps(record).encode()[:_STARTS_BYTES].ljust(_STARTS_BYTES), 0)


def _start_counted(folder: Path, command: Sequence[str], starts: _Starts, clock: Clock, deadline_s: float) -> bool:
    """Record the start, then `_start`; record its error too, unless only the caller can fix it."""
    starts.begun(clock())
    try:
        return _start(folder, command, deadline_s - clock())
    except OmidError as error:
        if not isinstance(error, Misuse):
            starts.failed(error)
        raise


def _start(folder: Path, command: Sequence[str], timeout_s: float) -> bool:
    """Run `command`, which returns when its detached child serves. False if another TSO was faster."""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
    except (FileNotFoundError, PermissionError) as error:
        raise Misuse(
            f"cannot start the TSO of {folder}: cannot run {command[0]}: {error.strerror}", folder=str(folder)
        ) from error
    try:
        _, output = process.communicate(timeout=max(timeout_s, POLL_S))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        # Do not read the pipe to its end: a stopped child of the process may hold the other side for ever.
        assert process.stderr is not None
        process.stderr.close()
        return False
    if process.returncode in (0, LOST_EXIT_CODE):
        return process.returncode == 0
    raise _start_error(folder, output.decode("utf-8", "replace"), process.returncode)


def _start_error(folder: Path, output: str, code: int) -> OmidError:
    lines = output.strip().splitlines() or ["it printed no error"]
    if code == ERROR_EXIT_CODE:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            error = json.loads(lines[-1])
            return by_code(error["code"])(error["message"], **error["values"])
    append_text(folder / LOG_FILE, output)
    return Unavailable(
        f"could not start the TSO of {folder} (exit code {code}): {lines[-1]} (full output: {folder / LOG_FILE})",
        exit_code=code,
    )


def error_line(error: OmidError) -> str:
    """Return the line that the started process prints and `_start_error` parses."""
    return json.dumps({"code": error.code, "message": error.message, "values": error.values}, default=str)


def _last_holder(folder: Path) -> str:
    """Return, as text, which process held the folder's lock last, and what became of it."""
    last = holder(folder)
    pid, log_path = last.get("pid"), folder / LOG_FILE
    if not pid:
        return f"no process has held its lock yet; see {log_path}"
    if last.get("ended"):
        return f"process {pid} held its lock last and shut down normally; see {log_path}"
    if last.get("died_of"):
        return f"process {pid} held its lock last and died: {last['died_of']}; see {log_path}"
    if is_held(folder):
        socket_is = "exists" if (folder / SOCKET_FILE).exists() else "is missing"
        return f"process {pid} holds its lock ({process_text(pid)}), its socket {socket_is}; see {log_path}"
    return f"process {pid} held its lock last and recorded no end (killed?); see {log_path}"
