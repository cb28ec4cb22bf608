"""TSO processes of a cluster, started as an operator starts them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from pyomid.database.database import Database
from pyomid.database.foreign_tables import confirm
from pyomid.omid.hbase.zookeeper import ZooKeeper
from pyomid.types import TABLES_UNCONFIRMED
from waiting import until


def give_up_the_lease(quorum: str, namespace: str = "omid") -> None:
    """In the name of a Java TSO that is dead. It was killed, or its end gives nothing back: whoever leads next would
    wait for as long as its own lease lasts."""
    zookeeper = ZooKeeper(quorum)
    zookeeper.ask("set", f"/{namespace}/tso-lease", b"")
    zookeeper.close()


def confirm_tables(database: Database) -> None:
    """As an operator would: Java TSOs lead the same HBase in other tests, and each leaves sanitising shut (K6)."""
    confirm(database._core.deployment, database._core.deployment.catalog.unknown_tables().get(TABLES_UNCONFIRMED))


def forget_others(database: Database) -> None:
    """What other tests left in the shared HBase and would hold W or shut sanitising: leases of killed owners, marks of
    tables that are gone, the one of an unconfirmed change of TSO."""
    for start_ts in database.status().tso.leases:
        database._core.deployment.tso.end_lease(start_ts)
    confirm_tables(database)
    catalog = database._core.deployment.catalog
    for number, nonce in catalog.unknown_tables().items():
        if number != TABLES_UNCONFIRMED:
            catalog.clear_unknown_table(number, nonce)


def with_options(url: str, options: str) -> str:
    """The URL with more options."""
    return f"{url}{'&' if '?' in url else '?'}{options}"


class TsoProcess:
    """`pyomid tso` over HBase on a free port. `wait_until_leading` returns its address.

    The lease is long, so that a busy machine ends no leader; tests of fail-over shorten it.
    """

    def __init__(
        self,
        url: str,
        log: Path,
        *,
        lease_s: float = 20.0,
        options: tuple[str, ...] = (),
        stops_at: str = "",
        python: tuple[str, ...] = ("-m", "pyomid"),
    ) -> None:
        """`stops_at`: a crash point at which it freezes (SIGSTOP), with `:n` for its n-th passage; see `frozen`.
        `python`: what the interpreter runs instead of the command itself."""
        self.log = log
        self.address = ""
        """Where it serves, once it leads."""
        self._note = log.with_suffix(".note")
        environment = dict(os.environ)
        if stops_at:
            environment |= {
                "PYOMID_CRASH_AT": stops_at,
                "PYOMID_CRASH_HOW": "stop",
                "PYOMID_CRASH_NOTE": str(self._note),
            }
        url = with_options(url, "conflictMapEntries=100000")
        command = [sys.executable, *python, "tso", "--listen", "127.0.0.1:0", "--store", url]
        command += ["--leader-lease", str(lease_s), *options]
        with open(log, "ab") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
            )

    def wait_until_frozen(self, *, deadline_s: float = 120.0) -> str:
        """The crash point it stands at, once it does: the note is written, and the kernel says stopped."""
        end_s = time.monotonic() + deadline_s
        while time.monotonic() < end_s:
            assert self.process.poll() is None, f"it ended instead: {self.log.read_text()[-2000:]}"
            if self._note.exists() and (written := self._note.read_text()).endswith("\n") and self._is_stopped():
                return written.split()[0]
            time.sleep(0.01)
        raise AssertionError("the TSO never came to its crash point")

    def _is_stopped(self) -> bool:
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        return stat[stat.rindex(")") + 2] == "T"

    def wait_until_standing_by(self, *, deadline_s: float = 120.0) -> None:
        """It has looked at the lease once and waits for its turn (or has it already)."""
        until(lambda: "standing by" in self.log.read_text(), "it never stood by", wait_s=deadline_s)

    def wait_until_leading(self, *, deadline_s: float = 120.0) -> str:
        """The address it serves on. Raises where it ended instead."""
        timer = threading.Timer(deadline_s, self.process.kill)
        timer.start()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        timer.cancel()
        if not line:
            raise AssertionError(f"the TSO never led: {self.log.read_text()[-2000:]}")
        self.address = line.split()[-1]
        return self.address

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM, to the end; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        return self.process.wait(timeout=120.0)

    def __enter__(self) -> TsoProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@contextmanager
def leading_tso(url: str, log: Path, **how: Any) -> Iterator[TsoProcess]:
    """It leads when the block begins, and ends in order behind it."""
    with TsoProcess(url, log, **how) as process:
        process.wait_until_leading()
        yield process
        assert process.stop() == 0
