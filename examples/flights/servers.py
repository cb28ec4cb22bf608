"""An HBase for the demo, and the faults of a cluster: regions, two region servers, and two TSOs of which one leads.

    split     a region of flights is split during a job                           scans and writes follow it
    move      a region of flights moves to the other server during a job          the same
    server    SIGKILL of the region server that holds it, during a job; then a    its log is replayed elsewhere
              new one is started

The second region server is killed; the master process (with ZooKeeper and the first region server) stays.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from examples.flights import security, settings
from examples.flights.events import Event, all_events, count, note
from examples.flights.faults import after, kill_tso
from examples.flights.places import (
    CLUSTER,
    EXAMPLE_FAILING,
    EXAMPLE_RATE,
    SECONDS_A_YEAR,
    Fault,
    Service,
    Start,
    Started,
)

from pyomid.cli.hbase import HBaseServer, Process
from pyomid.config import HBaseAddress, parse_url
from pyomid.errors import Misuse, OmidError
from pyomid.omid.hbase.catalog import HBaseCatalog
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.codec.layout import COMMIT_FAMILY, COMMIT_QUALIFIER, commit_row
from pyomid.omid.hbase.coordination import find_tso
from pyomid.omid.hbase.deployment import create_database, hbase_options, open_cluster
from pyomid.omid.hbase.regions.admin import Admin
from pyomid.omid.hbase.regions.locations import Region
from pyomid.rows.row_key import key_layout

LEADER_LEASE_SECONDS = 6
"""A standby replaces a killed leader after this long (default: 10)."""

PAUSE_SECONDS = 5
"""Time between two attempts of one fault: a region from a split cannot be split again before it is compacted."""

SPLIT_AT = ("JFK", "EWR", "LGA")
"""Origins at which splits are tried, in order: if a split falls between two jobs, the next origin is tried."""

_CELL_BYTES = 4 + 4 + 2 + 1 + 8 + 1
"""HBase's KeyValue without row, family, qualifier and value: lengths, timestamp, type."""


@contextmanager
def started() -> Iterator[Servers]:
    """Start servers, database and TSOs, and end them afterwards; their URL is put into the environment."""
    servers = Servers(settings.FOLDER)
    try:
        servers.start()
        os.environ["DEMO_URL"] = servers.url
        yield servers
    finally:
        servers.stop()


@dataclass(slots=True)
class TsoProcess:
    """A `pyomid tso` process, which prints its address when it leads."""

    popen: subprocess.Popen[bytes]
    said: Path

    @property
    def address(self) -> str:
        """Its address; empty until it leads."""
        words = self.said.read_text().split()
        return words[words.index("on") + 1] if "on" in words[:-1] else ""


@dataclass(slots=True)
class Injection:
    """One fault of the cluster: the number of months after which it is injected, and the function that does so; it
    returns what it did, or None if that was not possible yet."""

    fault: Fault
    after_months: int
    act: Callable[[], str | None]
    then: Callable[[], object] = lambda: None
    jobs: list[Event] = field(default_factory=list)
    did: str = ""


class Servers:
    """A cluster as the demo's database (`places.Place`)."""

    title = "an HBase of two region servers, with a pair of TSOs" + (
        ", with Kerberos and TLS" if settings.SECURED else ""
    )
    deaths = "the leading TSO, a region server"

    def __init__(self, folder: Path) -> None:
        # For sessions of ten seconds: with HBase's default of six seconds per tick they would be twelve.
        ticks = {"hbase.zookeeper.property.tickTime": "2000"}
        self._security = security.of_this_run()
        if self._security is None:
            self._hbase = HBaseServer(folder / "hbase", heap_mb=1024, settings=ticks)
        else:
            self._hbase = self._security.server(folder / "hbase", ticks)
        self._tsos: list[TsoProcess] = []
        self._started = 0
        self._second: tuple[Process, int] | None = None
        self._cluster: Cluster | None = None
        self._ended = threading.Event()
        self._supervisor = threading.Thread(target=self._keep_a_pair, name="supervisor", daemon=True)
        self._split_at = deque(SPLIT_AT)
        self._next_try_s = 0.0
        self._tso_fault = Fault("tso", "kill -9 of the TSO while it has commit requests")
        self._in_flight: list[Event] = []
        split = Fault("split", "a region of flights split during a job")
        move = Fault("move", "a region of flights moved during a job")
        server = Fault("server", "kill -9 of a region server during a job, then a new one")
        self._injections = [
            Injection(split, 1, self._split),
            Injection(move, settings.MONTHS // 4, self._move),
            Injection(server, settings.MONTHS // 2, self._kill, self._start_region_server),
        ]

    # --- life ---------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        shown = "" if self._security is None else f"&{self._security.options()}"
        return f"omid+hbase://{self._hbase.quorum}/hbase?{settings.TERMS}{shown}"

    @property
    def cluster(self) -> Cluster:
        assert self._cluster is not None
        return self._cluster

    def start(self) -> None:
        print("starting HBase, a second region server and two TSOs …", flush=True)
        settings.LOGS.mkdir(parents=True, exist_ok=True)
        self._hbase.start()
        address, options = parse_url(self.url)
        assert isinstance(address, HBaseAddress)
        self._cluster = open_cluster(address.quorum, address.znode, hbase_options(options), deadline_s=60.0)
        create_database(self._cluster)
        self._start_region_server()
        self._start_tso()
        self._start_tso()
        self._supervisor.start()
        _wait(lambda: self.tso_pid() > 0, "a TSO leads", 60.0)

    def stop(self) -> None:
        self._ended.set()
        if self._supervisor.is_alive():
            self._supervisor.join()
        for tso in self._tsos:
            tso.popen.kill()
            tso.popen.wait()
        if self._cluster is not None:
            self._cluster.close()
        if self._second is not None:
            self._second[0].send(signal.SIGKILL)
        self._hbase.kill()
        if self._security is not None:
            self._security.stop()

    def tso_pid(self) -> int:
        try:
            address = find_tso(self.cluster.zookeeper).address
        except OmidError:
            return 0
        living = (tso for tso in self._tsos if tso.popen.poll() is None)
        return next((tso.popen.pid for tso in living if tso.address == address), 0)

    def _keep_a_pair(self) -> None:
        """Restart a TSO that has ended, whether killed or in doubt of its lease, as systemd would."""
        while not self._ended.wait(0.5):
            for tso in [tso for tso in self._tsos if tso.popen.poll() is not None]:
                self._tsos.remove(tso)
                self._start_tso()

    def _start_tso(self) -> None:
        self._started += 1
        number = self._started
        said = settings.LOGS / f"tso-{number}.address"
        options = {
            "--listen": "127.0.0.1:0",
            "--store": f"{self.url}&conflictMapEntries={1 << 20}",
            "--leader-lease": LEADER_LEASE_SECONDS,
            **({} if self._security is None else self._security.tso_options()),
        }
        command = [sys.executable, "-m", "pyomid", "tso", *(str(word) for pair in options.items() for word in pair)]
        with said.open("wb") as output, (settings.LOGS / f"tso-{number}.err").open("wb") as errors:
            popen = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors)
        self._tsos.append(TsoProcess(popen, said))

    def _start_region_server(self) -> None:
        self._second = self._hbase.start_region_server(heap_mb=512, deadline_s=120.0)
        note(CLUSTER, "started", pid=self._second[0].pid, port=self._second[1])

    # --- faults -------------------------------------------------------------------------------------------

    def faults(self) -> list[Fault]:
        return [self._tso_fault, *(injection.fault for injection in self._injections)]

    def services(self) -> list[Service]:
        return [Service("corrections", (1, 2))]

    def start_services(self, start: Start) -> Started:
        return {service.name: start(service) for service in self.services()}

    def watch(self) -> None:
        """Inject at most one fault of the store per call, while a transaction is open; retry if the transactions ended
        before it."""
        if not self._tso_fault.hit and count("corrected") >= settings.CORRECTIONS // 3:
            self._in_flight = kill_tso(self.tso_pid())
            self._tso_fault.hit = bool(self._in_flight)
        injection = next((each for each in self._injections if not each.fault.hit), None)
        if injection is None or sum(count("committed", lane) for lane in settings.PIPELINES) < injection.after_months:
            return
        jobs = open_jobs()
        if not jobs or time.monotonic() < self._next_try_s:
            return
        self._next_try_s = time.monotonic() + PAUSE_SECONDS
        try:
            did = injection.act()
            if did is None:
                return
            injection.did, injection.jobs = did, [job for job in jobs if job in open_jobs()]
            injection.fault.hit = bool(injection.jobs)
            injection.then()
        except OmidError as error:
            note(CLUSTER, "failed", fault=injection.fault.name, error=str(error)[:500])

    def finish(self) -> None:
        self._tso_fault.outcome = "; ".join(map(after, self._in_flight))
        for injection in self._injections:
            jobs = "; ".join(f"start {job.values['start_ts']}: {fate(job)}" for job in injection.jobs)
            injection.fault.outcome = f"{injection.did}; {jobs}" if injection.did else "never injected"

    def _split(self) -> str | None:
        (table,) = [info for info in HBaseCatalog(self.cluster).tables() if info.name == settings.FLIGHTS]
        assert table.schema is not None, "Spark created it"
        if not self._split_at:
            return None
        origin, admin = self._split_at[0], Admin(self.cluster)
        try:
            admin.split(settings.FLIGHTS, key_layout(table.schema).encode_prefix([origin]))
        except OmidError:  # a region from a split can be split again once it is compacted
            self._split_at.rotate(-1)
            admin.compact(settings.FLIGHTS)
            raise
        self._split_at.popleft()
        regions = len(self.cluster.regions(settings.FLIGHTS))
        note(CLUSTER, "split", at_origin=origin, regions=regions)
        return f"at {origin}, {regions} regions then"

    def _move(self) -> str | None:
        """Move the last region to the second server, or back if it is already there."""
        assert self._second is not None
        _, preferred = self._second
        region = self._last_region()
        others = [each for each in Admin(self.cluster).servers() if each[0] != region.server]
        if not others:
            return None
        address, start_code = min(others, key=lambda each: each[0].port != preferred)

        def is_there() -> bool:
            found = self._last_region()
            if found.server != address:
                Admin(self.cluster).move(found, address, start_code)
            return found.server == address

        _wait(is_there, "the region moved", 60.0)
        note(CLUSTER, "moved", port=address.port)
        return f"to the server at port {address.port}"

    def _kill(self) -> str | None:
        """Kill the second server while it holds regions of flights; if it holds none, move one there first."""
        assert self._second is not None
        process, port = self._second
        servers = [region.server for region in self.cluster.regions(settings.FLIGHTS)]
        held = sum(server is not None and server.port == port for server in servers)
        if not held:
            self._move()
            return None
        process.send(signal.SIGKILL)
        note(CLUSTER, "killed", pid=process.pid, port=port)
        return f"port {port} with {held} of {len(servers)} regions of flights"

    def _last_region(self) -> Region:
        return max(self.cluster.regions(settings.FLIGHTS), key=lambda region: region.key_range.start)

    # --- figures ------------------------------------------------------------------------------------------

    def growth(self) -> tuple[str, float]:
        entry = _CELL_BYTES + len(commit_row(0)) + 1 + len(COMMIT_FAMILY) + len(COMMIT_QUALIFIER) + 2
        return f"keeps an entry in a cell of about {entry} B", EXAMPLE_RATE * EXAMPLE_FAILING * SECONDS_A_YEAR * entry


def open_jobs() -> list[Event]:
    """Return the "begun" events of the pipelines' open transactions."""
    last: dict[str, Event] = {}
    begun: dict[str, Event] = {}
    for event in all_events():
        if event.lane in settings.PIPELINES:
            last[event.lane] = event
            if event.kind == "begun":
                begun[event.lane] = event
    return [begun[lane] for lane, event in last.items() if event.kind in ("begun", "written")]


def fate(job: Event) -> str:
    """Return how a transaction ended that was open during a fault."""
    for event in all_events():
        if event.lane == job.lane and event.at > job.at and event.kind in _FATES:
            return _FATES[event.kind]
    return "never ended"


_FATES = {
    "committed": "committed",
    "conflict": "conflict, rerun",
    "interrupted": "interrupted, rerun by its id",
    "killed": "its driver was killed",
}


def _wait(condition: Callable[[], bool], what: str, deadline_s: float) -> None:
    waiting = threading.Event()
    for _ in range(int(deadline_s / 0.5)):
        if condition():
            return
        waiting.wait(0.5)
    raise Misuse(f"{what}: not reached within {deadline_s:g} s")
