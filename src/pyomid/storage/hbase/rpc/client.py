"""A blocking client of one HBase cluster, shared by any number of threads.

    cluster = Cluster(ZooKeeper("zk1:2181"))
    cluster.rows("t", [RowGet(b"r")])
    for block in cluster.scan(ScanSpec("t", KeyRange())): ...

There is one connection for each server and service. `deadline_s` bounds every call; errors are those of
`pyomid.errors`.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Sequence
from typing import Any, TypedDict, TypeVar, Unpack

from pyomid.errors import Misuse, Unavailable
from pyomid.storage.checks import ProcessGuard
from pyomid.storage.hbase.regions.locations import LocationCache, Region, parse_master_znode, parse_meta_znode
from pyomid.storage.hbase.regions.operations import (
    Answer,
    Budget,
    FindServer,
    Finish,
    Pause,
    RegionOperations,
    Request,
    Role,
    SentCall,
    Start,
    Steps,
)
from pyomid.storage.hbase.regions.parallel_scan import ParallelScan
from pyomid.storage.hbase.regions.scan_cursor import ScanBlock, ScanSpec
from pyomid.storage.hbase.rpc.connection import CONNECT_S_MAX, Connection
from pyomid.storage.hbase.rpc.failures import CallTimedOut, ConnectionLost, RemoteFailure
from pyomid.storage.hbase.rpc.frames import Address
from pyomid.storage.hbase.rpc.handshake import Handshake, SimpleHandshake
from pyomid.storage.hbase.rpc.requests import Durability, RowRequest, RowResult
from pyomid.storage.hbase.zookeeper import ZooKeeper
from pyomid.types import KeyRange

T = TypeVar("T")


class ClusterOptions(TypedDict, total=False):
    """`handshake`: simple authentication as `user` by default. Each operation has `deadline_s` (60), each of its calls
    at most `call_s_max` (20). `tls`: all connections use it."""

    user: str | None
    handshake: Handshake | None
    deadline_s: float
    call_s_max: float
    durability: Durability
    tls: ssl.SSLContext | None


class ClusterClient:
    """What the blocking and the asyncio client share."""

    def __init__(self, zookeeper: ZooKeeper, **options: Unpack[ClusterOptions]) -> None:
        self.zookeeper = zookeeper
        self.deadline_s = options.get("deadline_s", 60.0)
        self.call_s_max = options.get("call_s_max", 20.0)
        self.operations = RegionOperations(LocationCache(), durability=options.get("durability", Durability.TABLE))
        self.tls = options.get("tls")
        self.handshake = options.get("handshake") or SimpleHandshake(options.get("user"))
        self._closed = False

    def budget(self, what: str, deadline_s: float | None = None) -> Budget:
        return Budget(what, self.deadline_s if deadline_s is None else deadline_s, self.call_s_max)

    def _find(self, request: FindServer) -> Address | Unavailable:
        try:
            content = self.zookeeper.read_hbase(request.role.value)
        except Unavailable as error:
            return error
        return parse_meta_znode(content) if request.role is Role.META else parse_master_znode(content)


class Cluster(ClusterClient):
    """A blocking client. It must not be used in a forked child (`Misuse`)."""

    def __init__(self, zookeeper: ZooKeeper, **options: Unpack[ClusterOptions]) -> None:
        super().__init__(zookeeper, **options)
        self._connections: dict[tuple[Address, str], Connection] = {}
        self._connecting = threading.Lock()
        self._guard = ProcessGuard("HBase client")

    def rows(self, table: str, requests: Sequence[RowRequest], *, deadline_s: float | None = None) -> list[RowResult]:
        """Each request's result, in order."""
        return self.run(self.operations.rows_steps(table, requests, self.budget(f"rows of {table}", deadline_s)))

    def row_outcomes(self, table: str, requests: Sequence[RowRequest]) -> list[RowResult | RemoteFailure]:
        """The same, with the failure in place of the result of a request that can never work."""
        return self.run(self.operations.outcomes_steps(table, requests, self.budget(f"rows of {table}")))

    def check_process(self) -> None:
        """`Misuse` in a forked child."""
        self._guard.check()

    def regions(self, table: str) -> list[Region]:
        """As meta says now."""
        return self.run(self.operations.regions_steps(table, self.budget(f"regions of {table}")))

    def lacking(self, tables: Sequence[str]) -> list[str]:
        """Those of the tables that HBase does not have. Waits for an HBase that is starting."""
        states = self.run(self.operations.table_states_steps(tables, self.budget("looking for tables")))
        return [table for table, state in zip(tables, states, strict=True) if state is None]

    def start_of_last_rows(self, table: str, key_range: KeyRange, rows: int) -> bytes:
        """As the port of stores says, within one region."""
        budget = self.budget(f"looking from the end of a range of {table}")
        return self.run(self.operations.start_of_last_rows_steps(table, key_range, rows, budget))

    def scan(self, spec: ScanSpec) -> Scan:
        return Scan(self, spec)

    def run(self, steps: Steps[T]) -> T:
        """Drives an operation to its end."""
        self._guard.check()
        result: Any = None
        try:
            request = next(steps)
            while True:
                result = self._perform(request)
                request = steps.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def close(self) -> None:
        """Closes all connections. Calls under way fail. Idempotent."""
        with self._connecting:
            self._closed = True
            connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            connection.close()
        self.zookeeper.close()

    def _perform(self, request: Request) -> Any:
        if isinstance(request, Start):
            return [self._start(address, call, request.timeout_s) for address, call in request.sends]
        if isinstance(request, Finish):
            return self._finish(request.sent_call, request.timeout_s)
        if isinstance(request, Pause):
            time.sleep(request.seconds)
            return None
        return self._find(request)

    def _start(self, address: Address, call: Any, timeout_s: float) -> SentCall:
        try:
            connection = self._connection(address, call.service)
            return SentCall(address, (connection, connection.start(call, timeout_s=timeout_s)))
        except ConnectionLost as failure:
            return SentCall(address, failure=failure)

    @staticmethod
    def _finish(sent_call: SentCall, timeout_s: float) -> Answer:
        connection, pending = sent_call.handle
        try:
            return connection.finish(pending, timeout_s=timeout_s)  # type: ignore[no-any-return]
        except (ConnectionLost, CallTimedOut) as failure:
            return failure

    def _connection(self, address: Address, service: str) -> Connection:
        connection = self._connections.get((address, service))
        if connection is not None and not connection.is_lost:
            return connection
        with self._connecting:
            if self._closed:
                raise Misuse("the HBase client is closed")
            connection = self._connections.get((address, service))
            if connection is None or connection.is_lost:
                connection = Connection(address, service, self.handshake, connect_timeout_s=CONNECT_S_MAX, tls=self.tls)
                self._connections[(address, service)] = connection
            return connection


class Scan:
    """Blocks of a scan. Call `received` after each; `close` frees the server's scanner."""

    def __init__(self, cluster: Cluster, spec: ScanSpec) -> None:
        self._cluster = cluster
        self._spec = spec
        self._streams = ParallelScan(cluster.operations, spec)

    def received(self, row: bytes) -> None:
        """All rows up to `row`, included, were received whole: a scan that breaks goes on after it."""
        self._streams.received(row)

    def fetch(self) -> ScanBlock | None:
        budget = self._cluster.budget(f"scan of {self._spec.table}")
        return self._cluster.run(self._streams.fetch_steps(budget))

    def close(self) -> None:
        self._cluster.run(self._streams.close_steps(self._cluster.budget("closing a scan", 1.0)))
