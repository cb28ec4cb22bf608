"""What `conftest` checks of every folder when it has been opened, before it is closed, and after each test, while the
test's fixtures still have folders open:

    locks        LMDB of other processes finds this process's locks of the lock file, so its readers count as alive
    inheritance  no program would inherit a file of a folder, or a socket
    standard     no process of the test has a file of a folder, or a socket, as descriptor 0, 1 or 2
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pyomid.system import file_id

_STANDARD: Final = range(3)
_standard_at_start: Final = {
    os.readlink(f"/proc/self/fd/{fd}") for fd in _STANDARD if os.path.exists(f"/proc/self/fd/{fd}")
}
_seen: Final[list[str]] = []
"""What was found since the last call of `faults`."""
_open: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
_watched_pid = 0
"""The process that watches. A forked child has none of its parent's locks."""


def watch() -> None:
    """Check each folder that this process opens and closes from now on."""
    from pyomid.folder.environment import Environment

    global _watched_pid
    _watched_pid = os.getpid()
    opening, closing = Environment._open, Environment._close_lmdb

    def opened(environment: Environment) -> None:
        opening(environment)
        _open.add(environment)
        _seen.extend(_of_folder(environment, "after it was opened"))

    def closed(environment: Environment) -> None:
        if environment in _open:
            _open.discard(environment)
            _seen.extend(_of_folder(environment, "before it was closed"))
        closing(environment)

    Environment._open, Environment._close_lmdb = opened, closed  # type: ignore[method-assign]


def faults(folder: Path | None) -> list[str]:
    """Return what was found since the last call, and what there is now. `folder`: the test's, in which it makes its
    databases."""
    if not _is_watched():
        return []
    found = [*_seen, *_inheritable("after the test")]
    _seen.clear()
    for environment in list(_open):
        found += _lost_locks(environment, "after the test")
    if folder is not None:
        found += _standard(f"{folder}/")
    return list(dict.fromkeys(found))


def _is_watched() -> bool:
    return sys.platform == "linux" and os.environ.get("PYOMID_PORTABLE") != "1" and os.getpid() == _watched_pid


def _of_folder(environment: Any, when: str) -> Iterator[str]:
    if _is_watched():
        yield from _lost_locks(environment, when)
        yield from _inheritable(when)


def _lost_locks(environment: Any, when: str) -> Iterator[str]:
    """Locks of LMDB's lock file that LMDB of another process would not find. A descriptor's own locks are read at one
    moment; the system's list of all locks is not, while other processes lock and unlock."""
    held = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if file_id(os.fstat(int(name))) == environment._lock_id:
                locks = Path(f"/proc/self/fdinfo/{name}").read_text().split("lock:")[1:]
                held |= {(kind, first) for _, _, _, kind, _, _, first, _ in map(str.split, locks)}
    for kind, byte in (("READ", 0), ("WRITE", os.getpid())):
        if (kind, str(byte)) not in held:
            yield f"{environment.folder} {when}: the lock of byte {byte} is lost"


def _inheritable(when: str) -> Iterator[str]:
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if int(name) not in _STANDARD and os.get_inheritable(int(name)):
                target = os.readlink(f"/proc/self/fd/{name}")
                if is_of_a_folder(target) or target.startswith("socket:"):
                    yield f"descriptor {name}, {target}, {when}: a program would inherit it"


def _standard(folder: str) -> Iterator[str]:
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        targets = {fd: _target(pid, fd) for fd in _STANDARD}
        for fd, target in targets.items():
            is_file = target.startswith(folder) and is_of_a_folder(target) and not target.endswith("tso.log")
            is_socket = target.startswith("socket:") and target not in _standard_at_start
            if is_file or (is_socket and _has_file_of(pid, folder)):
                yield f"process {pid}, after the test: {target} is its descriptor {fd}"


def _has_file_of(pid: str, folder: str) -> bool:
    with suppress(OSError):
        return any(_target(pid, fd).startswith(folder) for fd in os.listdir(f"/proc/{pid}/fd"))
    return False


def _target(pid: str, fd: int | str) -> str:
    """Return what a descriptor refers to; an empty text if it is closed."""
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/fd/{fd}").removesuffix(" (deleted)")
    return ""


def is_of_a_folder(target: str) -> bool:
    """Whether a database's folder has this file."""
    return any(os.path.exists(f"{parent}/LAYOUT") for parent in map(str, Path(target).parents[:2]))
