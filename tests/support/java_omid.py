"""Apache Omid's own TSO and clients as processes beside us: for interop tests and as peers in benchmarks.

with JavaTso(folder, zookeeper_port=…) as tso, JavaClient(zookeeper_port, tso.address) as java:
    java.ask("begin", "t1")
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Final

from java_tools import OMID, compile_sources
from pyomid.cli.hbase import class_path, java, join
from pyomid.errors import Unavailable
from pyomid.omid.hbase.codec.layout import SystemNames

_START_S_MAX: Final = 180.0
_SOURCES: Final = Path(__file__).parents[1] / "hbase" / "java"

_MEMORY_MODULES: Final = """\
commitTableStoreModule: !!org.apache.omid.tso.InMemoryCommitTableStorageModule [ ]
timestampStoreModule: !!org.apache.omid.tso.InMemoryTimestampStorageModule [ ]
leaseModule: !!org.apache.omid.tso.VoidLeaseManagementModule [ ]
"""

_HBASE_MODULES: Final = """\
commitTableStoreModule: !!org.apache.omid.committable.hbase.DefaultHBaseCommitTableStorageModule
    tableName: "{commit_table}"
timestampStoreModule: {timestamps}
leaseModule: {lease}
"""

_TIMESTAMPS_IN_HBASE: Final = """!!org.apache.omid.timestamp.storage.DefaultHBaseTimestampStorageModule
    tableName: "{timestamp_table}"
"""

_TIMESTAMPS_IN_ZOOKEEPER: Final = """!!org.apache.omid.timestamp.storage.DefaultZKTimestampStorageModule
    zkCluster: "127.0.0.1:{port}"
    namespace: "{namespace}"
"""

_NO_LEASE: Final = "!!org.apache.omid.tso.VoidLeaseManagementModule [ ]"

_ZOOKEEPER_LEASE: Final = """!!org.apache.omid.tso.HALeaseManagementModule
    leasePeriodInMs: {lease_ms}
    tsoLeasePath: "/tso-lease"
    currentTsoPath: "/current-tso"
    zkCluster: "127.0.0.1:{port}"
    zkNamespace: "{namespace}"
"""


class JavaError(Exception):
    """What the Java side threw: the simple name of its class, and its message."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class JavaTso:
    """`org.apache.omid.tso.TSOServer` on a free port of the loopback; without `zookeeper_port` all in memory."""

    def __init__(
        self,
        folder: Path,
        *,
        zookeeper_port: int | None = None,
        batch_size: int = 25,
        conflict_map_entries: int = 1_000_000,
        wait_strategy: str = "LOW_CPU",
        heap_mb: int = 512,
        lease_s: float | None = None,
        ceiling_in_zookeeper: bool = False,
        names: SystemNames = SystemNames(),  # noqa: B008 - immutable
        timestamp_type: str = "INCREMENTAL",
    ) -> None:
        """`lease_s`: elected through ZooKeeper, in Omid's znodes. The timestamp ceiling is in HBase by default."""
        self.folder = folder
        self.port = free_port()
        self._zookeeper_port = zookeeper_port
        self._heap_mb = heap_mb
        lease = _NO_LEASE
        if lease_s is not None:
            lease = _ZOOKEEPER_LEASE.format(
                lease_ms=int(lease_s * 1000), port=zookeeper_port, namespace=names.zookeeper_namespace
            )
        timestamps = _TIMESTAMPS_IN_HBASE.format(timestamp_table=names.timestamp_table)
        if ceiling_in_zookeeper:
            timestamps = _TIMESTAMPS_IN_ZOOKEEPER.format(port=zookeeper_port, namespace=names.zookeeper_namespace)
        modules = _MEMORY_MODULES
        if zookeeper_port is not None:
            modules = _HBASE_MODULES.format(lease=lease, timestamps=timestamps, commit_table=names.commit_table)
        self._announced = f"/{names.zookeeper_namespace}/current-tso"
        self._settings = (
            f"networkIfaceName: lo\nport: {self.port}\nwaitStrategy: {wait_strategy}\n"
            f"conflictMapSize: {conflict_map_entries}\ntimestampType: {timestamp_type}\n"
            f"batchSizePerCTWriter: {batch_size}\n{modules}"
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> JavaTso:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Returns when it takes connections."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "omid-server-configuration.yml").write_text(self._settings)
        if self._zookeeper_port is not None:
            write_client_site(self.folder, self._zookeeper_port)
        self._process = _spawn(self.folder, "org.apache.omid.tso.TSOServer", heap_mb=self._heap_mb)
        end_s = time.monotonic() + _START_S_MAX
        while not _listens(self.port):
            if self._process.poll() is not None or time.monotonic() > end_s:
                raise Unavailable(f"the Java TSO did not start; its log is {self.folder / 'log'}")
            time.sleep(0.1)

    def wait_until_announced(self, *, newer_than: int = -1, deadline_s: float = 120.0) -> int:
        """Its epoch, once clients find it in ZooKeeper: with `lease_s` it listens first and is elected later.

        `newer_than`: the epoch of an earlier life on the same port, which may still stand there.
        """
        assert self._zookeeper_port is not None
        end_s = time.monotonic() + deadline_s
        while time.monotonic() < end_s:
            if self._process is None or self._process.poll() is not None:
                raise Unavailable(f"the Java TSO ended; its log is {self.folder / 'log'}")
            address, _, epoch = read_znode(self._zookeeper_port, self._announced).decode().partition("#")
            if address.endswith(f":{self.port}") and int(epoch) > newer_than:
                return int(epoch)
            time.sleep(0.1)
        raise Unavailable(f"the Java TSO did not lead within {deadline_s:g} s; its log is {self.folder / 'log'}")

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        _end(self._process)


def read_znode(zookeeper_port: int, path: str) -> bytes:
    """The znode's content as it is there; empty where there is none."""
    from kazoo.client import KazooClient
    from kazoo.exceptions import NoNodeError

    client = KazooClient(hosts=f"127.0.0.1:{zookeeper_port}")
    client.start(timeout=30.0)
    try:
        content: bytes = client.get(path)[0]
        return content
    except NoNodeError:
        return b""
    finally:
        client.stop()
        client.close()


def make_omid_tables(folder: Path, zookeeper_port: int, *, regions: int = 16, names: SystemNames | None = None) -> None:
    """Commit table and timestamp table as Apache Omid's own tool makes them."""
    folder.mkdir(parents=True, exist_ok=True)
    write_client_site(folder, zookeeper_port)
    tool = "org.apache.omid.tools.hbase.OmidTableManager"
    commits, timestamps = ["commit-table", "-numRegions", str(regions)], ["timestamp-table"]
    if names is not None:
        commits += ["-tableName", names.commit_table]
        timestamps += ["-tableName", names.timestamp_table]
    for arguments in (commits, timestamps):
        process = _spawn(folder, tool, *arguments, heap_mb=128)
        if process.wait(timeout=_START_S_MAX):
            raise Unavailable(f"OmidTableManager failed with {process.returncode}; its log is {folder / 'log'}")


class JavaClient:
    """A Java Omid application driven line by line (its source is compiled once).

    `tso`: its host:port; without it the client finds the one that leads in ZooKeeper.
    """

    def __init__(
        self,
        zookeeper_port: int,
        tso: str = "",
        *,
        level: str = "CELL",
        sources: Path = _SOURCES,
        main: str = "org.apache.omid.transaction.OmidClient",
        stores: tuple[str, str, str] | None = None,
        names: SystemNames | None = None,
    ) -> None:
        """`stores`: TLS with the TSO, by a trust store, a key store ("-": none), and the password of both."""
        classes = compile_sources(sources, OMID)
        self._process = subprocess.Popen(
            java("-Xmx256m", "-XX:+UseSerialGC", "-cp", join([classes, *class_path(OMID)]), main),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        if stores is not None:
            self.ask("trust", *stores)
        if names is not None:
            self.ask("names", names.zookeeper_namespace, names.commit_table)
        kind, address = ("DIRECT", tso) if tso else ("HA", f"127.0.0.1:{zookeeper_port}")
        self.ask("open", "127.0.0.1", str(zookeeper_port), kind, address, level)

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> JavaClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, *words: str) -> str:
        """One request, one answer; `JavaError` where the Java side threw."""
        self.send(*words)
        return self.receive()

    def send(self, *words: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\t".join(words) + "\n")
        self._process.stdin.flush()

    def receive(self) -> str:
        assert self._process.stdout is not None
        kind, _, rest = self._process.stdout.readline().rstrip("\n").partition("\t")
        if kind == "ok":
            return rest
        name, _, message = rest.partition("\t")
        raise JavaError(name or "Dead", message or "the Java client ended")

    def begin(self, name: str, *, dying: bool = False) -> int:
        """`dying`: it will do nothing any more after the TSO's answer to its commit."""
        return int(self.ask("begin", name, "dying") if dying else self.ask("begin", name))

    def put(self, name: str, table: str, row: bytes, family: bytes, qualifier: bytes, value: bytes) -> None:
        self.ask("put", name, table, *map(_hex, (row, family, qualifier, value)))

    def get(self, name: str, table: str, row: bytes) -> dict[bytes, bytes]:
        """b"family:qualifier" → value, as the Java client sees the row."""
        return {name: value for name, _, value in _cells(self.ask("get", name, table, _hex(row)))}

    def scan(self, name: str, table: str) -> dict[bytes, dict[bytes, bytes]]:
        answer = self.ask("scan", name, table)
        rows = (row.split("=") for row in answer.split(";") if row)
        return {_bytes(key): {name: value for name, _, value in _cells(cells)} for key, cells in rows}

    def delete(self, name: str, table: str, row: bytes, *column: bytes) -> None:
        """A row, a family of it, or a column."""
        self.ask("delete", name, table, _hex(row), *map(_hex, column))

    def checkpoint(self, name: str) -> int:
        return int(self.ask("checkpoint", name))

    def flush(self, name: str) -> None:
        self.ask("flush", name)

    def commit(self, name: str) -> int:
        """The commit timestamp; `JavaError` of kind RollbackException where it was aborted."""
        return int(self.ask("commit", name))

    def dump(self, table: str) -> bytes:
        """The table as it lies there, tombstones and shadow cells included, in the Java side's own encoding."""
        return _bytes(self.ask("dump", table))

    def rollback(self, name: str) -> None:
        self.ask("rollback", name)

    def kill(self) -> None:
        """kill -9."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        _end(self._process)


def write_client_site(folder: Path, zookeeper_port: int) -> None:
    """What a Java HBase client reads from its class path to find the cluster."""
    (folder / "hbase-site.xml").write_text(
        "<configuration>"
        "<property><name>hbase.zookeeper.quorum</name><value>127.0.0.1</value></property>"
        f"<property><name>hbase.zookeeper.property.clientPort</name><value>{zookeeper_port}</value></property>"
        "</configuration>\n"
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _spawn(folder: Path, main: str, *arguments: str, heap_mb: int) -> subprocess.Popen[bytes]:
    command = java(f"-Xmx{heap_mb}m", "-cp", join([folder, *class_path(OMID)]), main, *arguments)
    with open(folder / "log", "ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=os.fspath(folder)
        )


def _end(process: subprocess.Popen[bytes] | subprocess.Popen[str] | None) -> None:
    if process is None or process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=10.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _hex(value: bytes) -> str:
    return value.hex() or "-"


def _bytes(text: str) -> bytes:
    return b"" if text == "-" else bytes.fromhex(text)


def _cells(text: str) -> list[tuple[bytes, int, bytes]]:
    """(b"family:qualifier", version, value) of each cell of an answer."""
    parts = (cell.split(":") for cell in text.split(",") if cell)
    return [(_bytes(f) + b":" + _bytes(q), int(version), _bytes(value)) for f, q, version, value in parts]
