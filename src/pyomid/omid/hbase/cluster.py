"""A blocking client of one HBase cluster, shared by any number of threads.

    cluster = Cluster(ZooKeeper("zk1:2181"))
    cluster.rows("t", [RowGet(b"r")])
    for block in cluster.scan(ScanSpec("t", KeyRange())): ...

There is one connection for each server and service. `deadline_s` limits every operation. Operations raise the errors of
`pyomid.errors`.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Sequence
from typing import Any, TypeVar

from pyomid.checks import ProcessGuard
from pyomid.coroutines import Effect, Handler, Pause, Routine, drive
from pyomid.errors import Misuse, Unavailable
from pyomid.omid.hbase.codec.batches import ScanBlock
from pyomid.omid.hbase.codec.layout import SystemNames
from pyomid.omid.hbase.regions.calls import Answer, Budget, FindServer, Finish, Role, SentCall, Start
from pyomid.omid.hbase.regions.locations import LocationCache, Region, parse_master_znode, parse_meta_znode
from pyomid.omid.hbase.regions.operations import RegionOperations
from pyomid.omid.hbase.regions.parallel_scan import ParallelScan
from pyomid.omid.hbase.regions.scan_cursor import ScanSpec
from pyomid.omid.hbase.rpc.connection import CONNECT_S_MAX, Connection
from pyomid.omid.hbase.rpc.failures import CallTimedOut, ConnectionLost, RemoteFailure
from pyomid.omid.hbase.rpc.frames import Address, Call
from pyomid.omid.hbase.rpc.handshake import Handshake, SimpleHandshake
from pyomid.omid.hbase.rpc.requests import Durability, RowRequest, RowResult
from pyomid.omid.hbase.zookeeper import ZooKeeper
from pyomid.types import KeyRange

T = TypeVar("T")


class _SharedAttempt:
    """One attempt to connect to a server's service; all threads that need the connection wait for it. If it fails, the
    calls of all these threads fail. If each thread tried in turn, the last would wait one timeout per thread for a dead
    machine."""

    __slots__ = ("failed_s", "failure", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.failure: ConnectionLost | None = None
        self.failed_s = 0.0


class Cluster:
    """A blocking client of one cluster. Raises `Misuse` in a forked child process."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        *,
        user: str | None = None,
        handshake: Handshake | None = None,
        deadline_s: float = 60.0,
        call_s_max: float = 20.0,
        durability: Durability = Durability.TABLE,
        tls: ssl.SSLContext | None = None,
        names: SystemNames | None = None,
    ) -> None:
        """By default `handshake` is simple authentication as `user`. `deadline_s` limits each operation, `call_s_max`
        each of its calls."""
        self.zookeeper = zookeeper
        self.handshake = handshake or SimpleHandshake(user)
        self.deadline_s = deadline_s
        self.call_s_max = call_s_max
        self.operations = RegionOperations(LocationCache(), durability=durability, names=names or SystemNames())
        self.tls = tls
        self._closed = False
        self._connections: dict[tuple[Address, str], Connection] = {}
        self._attempts: dict[tuple[Address, str], _SharedAttempt] = {}
        self._guard = ProcessGuard("HBase client")
        self._handlers: dict[type[Effect[Any]], Handler] = {
            Start: self._send_all,
            Finish: lambda e: self._finish(e.sent_call, e.timeout_s),
            Pause: lambda e: time.sleep(e.pause_s),
            FindServer: self.find_server,
        }

    @property
    def names(self) -> SystemNames:
        return self.operations.names

    def budget(self, what: str, deadline_s: float | None = None) -> Budget:
        return Budget(what, self.deadline_s if deadline_s is None else deadline_s, self.call_s_max)

    def rows(self, table: str, requests: Sequence[RowRequest], *, deadline_s: float | None = None) -> list[RowResult]:
        """Return the result of each request, in the order of the requests."""
        return self.run(self.operations.rows(table, requests, self.budget(f"rows of {table}", deadline_s)))

    def row_outcomes(self, table: str, requests: Sequence[RowRequest]) -> list[RowResult | RemoteFailure]:
        """Like `rows`, but the result of a request that cannot succeed is its failure."""
        return self.run(self.operations.outcomes(table, requests, self.budget(f"rows of {table}")))

    def check_process(self) -> None:
        """Raise `Misuse` in a forked child process."""
        self._guard.check()

    def regions(self, table: str) -> list[Region]:
        """Return all regions of the table, read from meta."""
        return self.run(self.operations.regions(table, self.budget(f"regions of {table}")))

    def missing_tables(self, tables: Sequence[str]) -> list[str]:
        """Return the tables that HBase does not have. Waits for an HBase that is starting."""
        states = self.run(self.operations.table_states(tables, self.budget("checking which tables exist")))
        return [table for table, state in zip(tables, states, strict=True) if state is None]

    def start_of_last_rows(self, table: str, key_range: KeyRange, rows: int) -> bytes:
        """Return the key at which about the last `rows` rows of the range begin (`DataStore.start_of_last_rows`).
        Searches only the last region of the range."""
        budget = self.budget(f"finding the last rows of a range of {table}")
        return self.run(self.operations.start_of_last_rows(table, key_range, rows, budget))

    def scan(self, spec: ScanSpec) -> Scan:
        return Scan(self, spec)

    def run(self, routine: Routine[T]) -> T:
        """Run an operation to its end and return its result."""
        self._guard.check()
        return drive(routine, self._handlers)

    def close(self) -> None:
        """Close all connections. Calls in flight fail. Idempotent."""
        self._closed = True  # first, so that a thread that opens a connection meanwhile closes it itself
        connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            connection.close()
        self.zookeeper.close()

    def find_server(self, request: FindServer) -> Address | Unavailable:
        """Return the server's address, read from ZooKeeper."""
        try:
            content = self.zookeeper.read_hbase(request.role.value)
        except Unavailable as error:
            return error
        return parse_meta_znode(content) if request.role is Role.META else parse_master_znode(content)

    def _send_all(self, request: Start) -> list[SentCall]:
        """Send all calls. Calls to connected servers come first, so that they do not wait for a new connection."""
        until_s = time.monotonic() + request.timeout_s
        sent: dict[int, SentCall] = {}
        for index in sorted(range(len(request.sends)), key=lambda index: not self._is_open(*request.sends[index])):
            address, call = request.sends[index]
            sent[index] = self._send(address, call, max(0.0, until_s - time.monotonic()))
        return [sent[index] for index in range(len(request.sends))]

    def _is_open(self, address: Address, call: Call) -> bool:
        connection = self._connections.get((address, call.service))
        return connection is not None and not connection.is_lost

    def _send(self, address: Address, call: Call, timeout_s: float) -> SentCall:
        try:
            connection = self._connection(address, call.service, timeout_s)
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

    def _connection(self, address: Address, service: str, timeout_s: float) -> Connection:
        key = address, service
        connection = self._connections.get(key)
        if connection is not None and not connection.is_lost:
            return connection
        began_s = time.monotonic()
        attempt = self._attempts.setdefault(key, _SharedAttempt())
        with attempt.lock:
            connection = self._connections.get(key)
            if connection is not None and not connection.is_lost:
                return connection
            if attempt.failure is not None and attempt.failed_s >= began_s:
                raise attempt.failure.again()
            connection = self._connections[key] = self._connect(attempt, address, service, timeout_s)
        if self._closed:
            connection.close()
            raise Misuse("the HBase client is closed")
        return connection

    def _connect(self, attempt: _SharedAttempt, address: Address, service: str, timeout_s: float) -> Connection:
        connect_timeout_s = min(CONNECT_S_MAX, timeout_s)
        try:
            return Connection(address, service, self.handshake, connect_timeout_s=connect_timeout_s, tls=self.tls)
        except ConnectionLost as failure:
            attempt.failed_s, attempt.failure = time.monotonic(), failure.again()
            raise


class Scan:
    """The blocks of a scan. Call `received` after each block; `close` frees the server's scanner."""

    def __init__(self, cluster: Cluster, spec: ScanSpec) -> None:
        self._cluster = cluster
        self._spec = spec
        self._streams = ParallelScan(cluster.operations, spec)

    def received(self, row: bytes) -> None:
        """Record that the caller has all rows up to and including `row`. After a failure the scan continues there."""
        self._streams.received(row)

    def fetch(self) -> ScanBlock | None:
        budget = self._cluster.budget(f"scan of {self._spec.table}")
        return self._cluster.run(self._streams.fetch(budget))

    def close(self) -> None:
        self._cluster.run(self._streams.close(self._cluster.budget("closing a scan", 1.0)))
