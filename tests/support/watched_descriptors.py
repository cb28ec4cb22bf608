"""What `conftest` checks after each test, while its fixtures still have folders open: this process has every lock of
theirs, no program would inherit one of their files, and no process of the test has one as a standard descriptor."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def is_of_a_folder(target: str) -> bool:
    """Whether a database's folder has this file."""
    return any(os.path.exists(f"{parent}/LAYOUT") for parent in map(str, Path(target).parents[:2]))


def faults(folder: Path | None) -> Iterator[str]:
    """`folder`: the test's, in which it makes its databases."""
    if sys.platform != "linux" or os.environ.get("PYOMID_PORTABLE") == "1":
        return
    yield from _inheritable()
    if folder is not None:
        yield from _standard(f"{folder}/")
    yield from _lost_locks()


def _inheritable() -> Iterator[str]:
    for fd, target in _descriptors("self"):
        with suppress(OSError):
            if os.get_inheritable(fd) and is_of_a_folder(target):
                yield f"descriptor {fd}, of {target}, is inheritable"


def _standard(folder: str) -> Iterator[str]:
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        for fd in range(3):
            with suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{fd}").removesuffix(" (deleted)")
                if target.startswith(folder) and is_of_a_folder(target) and not target.endswith("tso.log"):
                    yield f"process {pid} has {target} as descriptor {fd}"


def _lost_locks() -> Iterator[str]:
    """Locks of LMDB's lock files that LMDB of another process would not find. A descriptor's own locks are read at one
    moment; the system's list of all locks is not, while other processes lock and unlock."""
    module = sys.modules.get("pyomid.storage.embedded.environment")
    for environment in () if module is None else list(module._register):
        if environment._locks is None or environment._locks.closed:
            continue
        with open(f"/proc/self/fdinfo/{environment._locks.fileno()}") as file:
            locks = [line.split()[2:] for line in file if line.startswith("lock:")]
        held = {(kind, first) for how, _, kind, _, _, first, _ in locks if how == "OFDLCK"}
        for kind, byte in (("READ", 0), ("WRITE", os.getpid())):
            if (kind, str(byte)) not in held:
                yield f"{environment.folder} has lost the lock of byte {byte}"


def _descriptors(process: str) -> Iterator[tuple[int, str]]:
    for fd in os.listdir(f"/proc/{process}/fd"):
        with suppress(OSError):
            yield int(fd), os.readlink(f"/proc/{process}/fd/{fd}")
