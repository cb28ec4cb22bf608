"""A real ZooKeeper by itself, without an HBase in its process: to be killed, stopped and started again."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

from java_omid import free_port
from pyomid.cli.hbase import HBASE, class_path, java, join
from pyomid.omid.hbase.zookeeper import ZooKeeper


class ZooKeeperProcess:
    """On a free port of the loopback; `settings`: further lines of its configuration. Not started."""

    def __init__(self, folder: Path, settings: str = "", *, port_setting: str = "clientPort") -> None:
        self.port = free_port()
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(exist_ok=True)
        (folder / "zoo.cfg").write_text(
            f"dataDir={folder}/data\n{port_setting}={self.port}\n{port_setting}Address=127.0.0.1\n"
            f"admin.enableServer=false\n{settings}"
        )

    @property
    def quorum(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Clients wait until it answers."""
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        given = "-Xmx128m", "-XX:+UseSerialGC", "-Dio.netty.transport.noNative=true"  # HBase's jars hold another's
        command = java(*given, "-cp", join(class_path(HBASE)), main, str(self._folder / "zoo.cfg"))
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def announce_hbase(there: ZooKeeper, here: ZooKeeper) -> None:
    """A standalone HBase has a ZooKeeper of its own (`there`): where its servers are is told to another one."""
    for name in ("meta-region-server", "master"):
        here.ask("create", f"/hbase/{name}", there.read_hbase(name), makepath=True)
