"""`pyomid hbase start|stop|status --dir D`: runs a standalone HBase on the loopback interface, for trials and tests.

Master, region server and ZooKeeper run in one JVM. `server.json` in the folder names its process and ports, so that
another process can use or stop it. It is not for production: the data is on the local file system, without replication.

Maven downloads the pinned jars once into its local repository. A file in the user's cache directory stores the
resulting class path, which is used as long as every jar in it exists.

    path = class_path(HBASE)                    # list of jars, in class-path order
    java("-Xmx64m", "-cp", join(path), "Main")  # argv for subprocess
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from pyomid.errors import Misuse, Unavailable


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "hbase", help="a standalone HBase and ZooKeeper for development and tests (needs JDK 17 and Maven)"
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="start|stop|status")
    for verb, run, text in (
        ("start", _start, "start it on the loopback, on free ports (the first start downloads the jars)"),
        ("stop", _stop, "stop it; its data stay in the folder"),
        ("status", _status, "print whether it runs, and its URL"),
    ):
        command = verbs.add_parser(verb, help=text)
        command.add_argument("--dir", type=Path, required=True, help="folder for all its files")
        if verb == "start":
            command.add_argument("--heap-mb", type=int, default=1024, help="the JVM's heap (default: %(default)s)")
        command.set_defaults(run=run)


def url_of(server: HBaseServer) -> str:
    return f"omid+hbase://{server.quorum}/hbase"


def _start(arguments: argparse.Namespace) -> int:
    server = HBaseServer(arguments.dir, heap_mb=arguments.heap_mb)
    print(f"starting HBase in {server.folder} (about fifteen seconds) …", flush=True)
    server.start()
    print(f"ready: {url_of(server)}\nnext:  pyomid init '{url_of(server)}'\nlog:   {server.log}")
    return 0


def _stop(arguments: argparse.Namespace) -> int:
    server = HBaseServer(arguments.dir)
    if not server.is_running():
        print(f"no HBase runs in {server.folder}")
        return 0
    server.stop()
    print(f"stopped; the data stay in {server.folder}")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    server = HBaseServer(arguments.dir)
    try:
        url = url_of(server)
    except Misuse as error:
        print(error)
        return 1
    running = server.is_running()
    print(f"{'running' if running else 'stopped'}: {url} in {server.folder}")
    return 0 if running else 1


# Jars

_DEPENDENCY_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
_RESOLVE_TIMEOUT_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Bundle:
    """Artifacts that share one class path. `dropped` has prefixes of file names to omit."""

    name: str
    artifacts: tuple[str, ...]
    """`group:artifact:version`, pinned."""
    dropped: tuple[str, ...] = ()


HBASE: Final = Bundle("hbase", ("org.apache.hbase:hbase-server:2.6.1-hadoop3",))
"""HMaster, region server and ZooKeeper in one process; also the Java HBase client."""

JAVA_OPENS: Final = tuple(
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in (
        "java.lang",
        "java.lang.reflect",
        "java.nio",
        "sun.nio.ch",
        "java.io",
        "java.util",
        "java.util.concurrent",
        "java.net",
        "jdk.internal.ref",
        "jdk.internal.misc",
    )
) + tuple(
    f"--add-exports=java.base/{package}=ALL-UNNAMED" for package in ("jdk.internal.misc", "sun.net.dns", "sun.net.util")
)
"""Options of the JVM (JDK 17) that HBase and Omid need."""


class JavaMissing(Unavailable):
    """A JDK or Maven is missing, or Maven could not download the jars; the message says which of these."""

    code = "OMID-JAVA-MISSING"


def class_path(bundle: Bundle) -> list[Path]:
    """Return the jars of `bundle`, or raise `JavaMissing`. The first call may download the jars. Several processes may
    call it at once."""
    folder = cache_folder() / f"{bundle.name}-{digest(*bundle.artifacts, *bundle.dropped)}"
    cached = _cached(folder)
    if cached:
        return cached
    with locked(folder):
        cached = _cached(folder)
        if cached:
            return cached
        return _resolve(bundle, folder)


def join(jars: Sequence[Path | str]) -> str:
    """Return a class path as an argument of the JVM."""
    return os.pathsep.join(str(jar) for jar in jars)


def java(*arguments: str) -> list[str]:
    """Return a command that starts the JVM with the options that HBase and Omid need."""
    return [str(tool("java")), *JAVA_OPENS, *arguments]


def tool(name: str) -> Path:
    """Return the path of `java`, `javac` or `mvn`, from JAVA_HOME or else from PATH."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / name).is_file():
        return Path(home) / "bin" / name
    found = shutil.which(name)
    if found is None:
        raise JavaMissing(f"{name} is not installed: Java servers need JDK 17 and Maven 3.8 or later")
    return Path(found)


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "pyomid" / "jars"


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _cached(folder: Path) -> list[Path]:
    try:
        jars = [Path(line) for line in (folder / "class-path").read_text().splitlines()]
    except FileNotFoundError:
        return []
    return jars if all(jar.is_file() for jar in jars) else []


def _resolve(bundle: Bundle, folder: Path) -> list[Path]:
    (folder / "pom.xml").write_text(_pom(bundle))
    output = folder / "output"
    run_tool(
        [
            str(tool("mvn")),
            "-B",
            "-q",
            "-f",
            str(folder / "pom.xml"),
            f"{_DEPENDENCY_PLUGIN}:build-classpath",
            "-DincludeScope=runtime",
            f"-Dmdep.outputFile={output}",
        ],
        what=f"resolving the jars of {bundle.name}",
    )
    jars = [Path(entry) for entry in output.read_text().strip().split(os.pathsep) if entry]
    kept = [jar for jar in jars if not jar.name.startswith(bundle.dropped or ("\0",))]
    partial = folder / "class-path.partial"
    partial.write_text("\n".join(map(str, kept)))
    partial.rename(folder / "class-path")
    return kept


def _pom(bundle: Bundle) -> str:
    dependencies = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>".format(
            *map(escape, artifact.split(":"))
        )
        for artifact in bundle.artifacts
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion>"
        "<groupId>pyomid</groupId><artifactId>jars</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )


def run_tool(command: list[str], *, what: str) -> None:
    # A pipe and no input: otherwise Maven would read from the terminal and take part in its job control.
    finished = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_RESOLVE_TIMEOUT_S,
        check=False,
    )
    if finished.returncode != 0:
        tail = finished.stdout.decode(errors="replace")[-2000:]
        raise JavaMissing(f"{what} failed with code {finished.returncode}: {tail}", code=finished.returncode)


# Server

_MASTER: Final = "org.apache.hadoop.hbase.master.HMaster"
_REGION_SERVER: Final = "org.apache.hadoop.hbase.regionserver.HRegionServer"
_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Process:
    """A JVM of this folder. `born` is the start time of the process, because pids are reused."""

    pid: int
    born: int

    def is_alive(self) -> bool:
        return _start_ticks(self.pid) == self.born

    def send(self, number: signal.Signals) -> None:
        """Send the signal to exactly this process, or, if it has ended, to none."""
        if self.is_alive():
            os.kill(self.pid, number)


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of the three servers, all on 127.0.0.1."""

    zookeeper: int
    master: int
    region_server: int


class HBaseServer:
    """One standalone HBase in one folder."""

    def __init__(
        self,
        folder: Path,
        *,
        heap_mb: int = 1024,
        settings: Mapping[str, str] | None = None,
        java_options: Sequence[str] = (),
        core_settings: Mapping[str, str] | None = None,
        jars: Bundle = HBASE,
    ) -> None:
        """`settings` are written to hbase-site.xml, and override the defaults for a server on the loopback interface.
        `core_settings` are written to core-site.xml. `jars` is the HBase to run."""
        self.folder = folder.resolve()
        self._heap_mb = heap_mb
        self._own_settings = dict(settings or {})
        self._java_options = tuple(java_options)
        self._core_settings = dict(core_settings or {})
        self._jars = jars
        self._ports: Ports | None = None
        self._master: Process | None = None
        self._load_state()

    @property
    def ports(self) -> Ports:
        if self._ports is None:
            raise self._never_started()
        return self._ports

    @property
    def quorum(self) -> str:
        return f"127.0.0.1:{self.ports.zookeeper}"

    @property
    def pid(self) -> int:
        """The pid of the process with master, region server and ZooKeeper."""
        if self._master is None:
            raise self._never_started()
        return self._master.pid

    def _never_started(self) -> Misuse:
        return Misuse(f"no HBase has been started in {self.folder}: run pyomid hbase start")

    @property
    def log(self) -> Path:
        return self.folder / "hbase.log"

    def is_running(self) -> bool:
        return self._master is not None and self._master.is_alive()

    def start(self, *, deadline_s: float = 240.0) -> None:
        """Start the server, on the ports of its earlier start if there was one. Return when the master and the region
        server reply."""
        if self.is_running():
            raise Misuse(f"an HBase (pid {self._master and self._master.pid}) is already running in {self.folder}")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._ports = self._ports or Ports(*_free_ports(3))
        conf = self._write_site("conf", distributed=False, region_server_port=self._ports.region_server)
        self._master = self._spawn(_MASTER, conf, self.log, heap_mb=self._heap_mb)
        self._save_state()
        self._wait_until(self._is_ready, self._master, self.log, deadline_s)

    def start_region_server(self, *, heap_mb: int = 256, deadline_s: float = 180.0) -> tuple[Process, int]:
        """Start another region server in a separate JVM, and return its process and port."""
        (port,) = _free_ports(1)
        name = f"region-server-{port}"
        conf = self._write_site(name, distributed=True, region_server_port=port)
        log = self.folder / f"{name}.log"
        process = self._spawn(_REGION_SERVER, conf, log, heap_mb=heap_mb)
        self._wait_until(lambda: self._is_registered(port), process, log, deadline_s)
        return process, port

    def stop(self, *, deadline_s: float = 60.0) -> None:
        """Stop the server, by SIGKILL if necessary. In either case, the folder holds all acknowledged writes."""
        if self._master is not None:
            end(self._master, deadline_s=deadline_s)

    def kill(self) -> None:
        """Kill the server by SIGKILL."""
        if self._master is not None:
            self._master.send(signal.SIGKILL)
            end(self._master, deadline_s=10.0)

    def _is_ready(self) -> bool:
        names = self._znodes("/hbase")
        return (
            {"master", "meta-region-server"} <= names
            and self._listens(self.ports.master)
            and self._listens(self.ports.region_server)
        )

    def _is_registered(self, port: int) -> bool:
        return any(name.split(",")[1] == str(port) for name in self._znodes("/hbase/rs"))

    def _znodes(self, path: str) -> set[str]:
        """Return the names below `path`; empty if ZooKeeper or the path is missing."""
        from kazoo.client import KazooClient
        from kazoo.exceptions import KazooException
        from kazoo.handlers.threading import KazooTimeoutError

        quiet = logging.getLogger("pyomid.cli.kazoo")
        quiet.setLevel(logging.CRITICAL)
        client = KazooClient(hosts=self.quorum, timeout=5.0, logger=quiet)
        try:
            client.start(timeout=2.0)
            return set(client.get_children(path))
        except (KazooException, KazooTimeoutError):
            return set()
        finally:
            client.stop()
            client.close()

    @staticmethod
    def _listens(port: int) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1.0)
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def _wait_until(self, condition: Callable[[], bool], process: Process, log: Path, deadline_s: float) -> None:
        end_s = time.monotonic() + deadline_s
        while time.monotonic() < end_s:
            if not process.is_alive():
                raise Unavailable(f"the JVM exited during startup; end of its log: {_tail(log)}")
            if condition():
                return
            time.sleep(_POLL_S)
        raise Unavailable(f"HBase did not answer within {deadline_s:g} s; end of its log {log}: {_tail(log)}")

    def _spawn(self, main: str, conf: Path, log: Path, *, heap_mb: int) -> Process:
        command = java(
            f"-Xmx{heap_mb}m",
            "-XX:+UseSerialGC" if heap_mb < 512 else "-XX:+UseG1GC",
            "-Djava.net.preferIPv4Stack=true",
            f"-Dhbase.log.dir={self.folder}",
            *self._java_options,
            "-cp",
            join([conf, *class_path(self._jars)]),
            main,
            "start",
        )
        with open(log, "ab") as output:
            started = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.folder,
            )
        return Process(started.pid, _start_ticks(started.pid))

    def _write_site(self, name: str, *, distributed: bool, region_server_port: int) -> Path:
        conf = self.folder / name
        conf.mkdir(parents=True, exist_ok=True)
        settings = self._settings(distributed=distributed, region_server_port=region_server_port)
        for file, values in (("hbase-site.xml", settings), ("core-site.xml", self._core_settings)):
            properties = "".join(
                f"<property><name>{escape(key)}</name><value>{escape(value)}</value></property>\n"
                for key, value in values.items()
            )
            (conf / file).write_text(f"<configuration>\n{properties}</configuration>\n")
        (conf / "log4j.properties").write_text(_LOGGING)
        return conf

    def _settings(self, *, distributed: bool, region_server_port: int) -> dict[str, str]:
        ports = self.ports
        return {
            "hbase.cluster.distributed": str(distributed).lower(),
            "hbase.rootdir": f"file://{self.folder}/data",
            "hbase.tmp.dir": f"{self.folder}/tmp",
            "hbase.unsafe.stream.capability.enforce": "false",
            "hbase.wal.provider": "filesystem",
            "hbase.zookeeper.quorum": "127.0.0.1",
            "hbase.zookeeper.property.clientPort": str(ports.zookeeper),
            "hbase.zookeeper.property.clientPortAddress": "127.0.0.1",
            "hbase.zookeeper.property.dataDir": f"{self.folder}/zookeeper",
            "hbase.zookeeper.property.admin.enableServer": "false",
            "zookeeper.admin.enableServer": "false",
            "zookeeper.session.timeout": "10000",
            "hbase.master.hostname": "localhost",
            "hbase.master.ipc.address": "127.0.0.1",
            "hbase.master.port": str(ports.master),
            "hbase.master.info.port": "-1",
            "hbase.regionserver.hostname": "localhost",
            "hbase.unsafe.regionserver.hostname": "localhost",
            "hbase.regionserver.ipc.address": "127.0.0.1",
            "hbase.regionserver.port": str(region_server_port),
            "hbase.regionserver.info.port": "-1",
            # Delete compacted files soon: until then a region from a split cannot split again.
            "hbase.hfile.compaction.discharger.interval": "1000",
            "hbase.catalogjanitor.interval": "1000",
            # On one machine the master need not wait for more region servers.
            "hbase.master.wait.on.regionservers.mintostart": "1",
            "hbase.master.wait.on.regionservers.timeout": "500",
            "hbase.master.wait.on.regionservers.interval": "100",
            **self._own_settings,
        }

    def _save_state(self) -> None:
        assert self._master is not None
        state = {"ports": asdict(self.ports), "master": asdict(self._master)}
        partial = self.folder / "server.json.partial"
        partial.write_text(json.dumps(state))
        partial.rename(self.folder / "server.json")

    def _load_state(self) -> None:
        try:
            state = json.loads((self.folder / "server.json").read_text())
        except FileNotFoundError:
            return
        self._ports = Ports(**state["ports"])
        self._master = Process(**state["master"])


def end(process: Process, *, deadline_s: float) -> None:
    """End the process by SIGTERM, or by SIGKILL after `deadline_s`, and return when it has ended."""
    process.send(signal.SIGTERM)
    end_s = time.monotonic() + deadline_s
    while process.is_alive():
        _reap(process.pid)
        if time.monotonic() > end_s:
            process.send(signal.SIGKILL)
            end_s = time.monotonic() + deadline_s
        time.sleep(0.05)


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):  # another process started it and reaps it
        os.waitpid(pid, os.WNOHANG)


def _start_ticks(pid: int) -> int:
    """Return the start time of a live process in clock ticks since boot; -1 if it has ended or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return -1
    fields = stat[stat.rindex(")") + 2 :].split()
    return -1 if fields[0] in "ZX" else int(fields[19])


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def _tail(log: Path) -> str:
    try:
        return log.read_bytes()[-1500:].decode(errors="replace")
    except FileNotFoundError:
        return "(no log)"


_LOGGING: Final = """\
log4j.rootLogger=WARN,out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %-5p [%t] %c{1}: %m%n
"""
