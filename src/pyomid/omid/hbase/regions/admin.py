"""Administration of tables, regions and snapshots. Each call waits for the master."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from google.protobuf.message import Message

from pyomid.coroutines import Pause
from pyomid.errors import Misuse, Unavailable, UnknownTable
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.regions.calls import (
    Budget,
    Failure,
    Role,
    ask_server,
    failure_of,
    find_server,
    has_succeeded,
    parsed,
)
from pyomid.omid.hbase.regions.locations import Region, table_name, table_of
from pyomid.omid.hbase.rpc.failures import Reaction, RemoteFailure
from pyomid.omid.hbase.rpc.frames import ADMIN, MASTER, Call
from pyomid.omid.hbase.rpc.hbase_pb2 import (
    CreateTableRequest,
    DeleteSnapshotRequest,
    DeleteSnapshotResponse,
    FlushRegionRequest,
    FlushRegionResponse,
    GetCompletedSnapshotsRequest,
    GetCompletedSnapshotsResponse,
    GetProcedureResultRequest,
    GetProcedureResultResponse,
    GetRegionInfoRequest,
    GetRegionInfoResponse,
    GetTableDescriptorsRequest,
    GetTableDescriptorsResponse,
    GetTableNamesRequest,
    GetTableNamesResponse,
    IsSnapshotDoneRequest,
    IsSnapshotDoneResponse,
    ProcedureStarted,
    RestoreSnapshotRequest,
    RestoreSnapshotResponse,
    SnapshotDescription,
    SnapshotRequest,
    TableName,
    TableRequest,
    TableSchema,
)
from pyomid.omid.hbase.rpc.requests import ALL_VERSIONS

M = TypeVar("M", bound=Message)

_POLL_S: Final = 0.05
_SNAPSHOT_S_MAX: Final = 1800.0
"""The deadline of a snapshot or clone of one table: servers flush their memory, and link files rather than copy
them."""


@dataclass(frozen=True, slots=True)
class FamilyDescriptor:
    name: bytes
    versions_max: int = ALL_VERSIONS
    ttl_s: int | None = None
    """The seconds after which HBase deletes a cell; None means never."""
    attributes: Mapping[bytes, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableDescriptor:
    name: str
    families: tuple[FamilyDescriptor, ...]
    attributes: Mapping[bytes, bytes] = field(default_factory=dict)
    """They include the coprocessors."""

    @property
    def family_names(self) -> frozenset[bytes]:
        return frozenset(family.name for family in self.families)

    @property
    def coprocessors(self) -> list[str]:
        """The class names of the coprocessors that the table has enabled."""
        values = (value for key, value in self.attributes.items() if key.lower().startswith(b"coprocessor$"))
        return [value.decode().split("|")[1] for value in values if value.count(b"|") >= 1]

    @property
    def durability(self) -> str:
        """Says when HBase acknowledges a write that specifies no durability itself."""
        return self.attributes.get(b"DURABILITY", b"USE_DEFAULT").decode()


class _Reshaped(Misuse):
    """The region no longer exists: it was split or merged."""


class Admin:
    """Administration through a `Cluster`. Calls block."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def create_table(self, descriptor: TableDescriptor, splits: Sequence[bytes] = ()) -> bool:
        """Create a table. Returns False, and changes nothing, if a table of this name exists."""
        request = CreateTableRequest(table_schema=schema_of(self._in_hbase(descriptor)), split_keys=sorted(splits))
        try:
            self._procedure("CreateTable", request, f"creating table {descriptor.name}")
        except Misuse as error:
            if "TableExistsException" in error.message:
                return False
            raise
        self._cluster.operations.cache.forget_table(descriptor.name)
        return True

    def drop_table(self, table: str) -> bool:
        """Drop a table if it exists, and return True. The call is idempotent."""
        while True:
            try:
                self.disable_table(table)
            except UnknownTable:
                return True
            if self.delete_table(table):
                return True

    def delete_table(self, table: str) -> bool:
        """Delete a disabled table. Return True if the table is gone, even if it did not exist. If the table is enabled,
        change nothing and return False."""
        try:
            self._procedure("DeleteTable", TableRequest(table_name=self._name(table)), f"dropping table {table}")
        except UnknownTable:
            pass
        except (Misuse, Unavailable) as error:
            if "TableNotDisabledException" not in error.message:
                raise
            return False
        self._cluster.operations.cache.forget_table(table)
        return True

    def disable_table(self, table: str) -> None:
        """Disable the table. No error if it is already disabled."""
        try:
            self._procedure("DisableTable", TableRequest(table_name=self._name(table)), f"disabling table {table}")
        except Unavailable as error:
            if "TableNotEnabledException" not in error.message:
                raise

    def enable_table(self, table: str) -> None:
        self._procedure("EnableTable", TableRequest(table_name=self._name(table)), f"enabling table {table}")

    def enable_if_disabled(self, table: str) -> None:
        """Enable the table. No error if it does not exist or is already enabled."""
        try:
            self.enable_table(table)
        except UnknownTable:
            pass
        except (Misuse, Unavailable) as error:
            if "TableNotDisabledException" not in error.message:
                raise

    def tables(self) -> list[str]:
        """Return the names of all tables except HBase's own and those of other databases, sorted."""
        reply = self._master("GetTableNames", GetTableNamesRequest(), GetTableNamesResponse, "listing tables")
        physical = (table_of(name.namespace, name.qualifier) for name in reply.table_names)
        return sorted(table for each in physical if (table := self._cluster.names.logical(each)) is not None)

    def table(self, table: str, *, deadline_s: float | None = None) -> TableDescriptor:
        """Return the table's descriptor. Raises `UnknownTable` if there is no such table."""
        request = GetTableDescriptorsRequest(table_names=[self._name(table)])
        budget = self._cluster.budget(f"reading the descriptor of {table}", deadline_s)
        reply = self._cluster.run(self._ask_master("GetTableDescriptors", request, GetTableDescriptorsResponse, budget))
        if not reply.table_schema:
            raise UnknownTable(f"HBase has no table {table!r}", table=table)
        return replace(_descriptor(reply.table_schema[0]), name=table)

    def exists(self, table: str) -> bool:
        """Return whether HBase has the table."""
        try:
            self.table(table)
        except UnknownTable:
            return False
        return True

    def flush_region(self, region: Region) -> None:
        """Flush the region's memory to files. If the region is split or merged meanwhile, HBase itself flushes it."""
        with contextlib.suppress(_Reshaped):
            self._region("FlushRegion", region, FlushRegionRequest(region=region.specifier), FlushRegionResponse)

    def best_split(self, region: Region) -> bytes | None:
        """Return the middle row of the region's largest file; None if the region has too few rows."""
        request = GetRegionInfoRequest(region=region.specifier, best_split_row=True)
        return self._region("GetRegionInfo", region, request, GetRegionInfoResponse).best_split_row or None

    def take_snapshot(self, name: str, table: str) -> None:
        """Take a snapshot. On return it is complete, and holds everything that was durable before the call."""
        description = SnapshotDescription(
            name=name, table=self._cluster.names.physical(table), type=SnapshotDescription.FLUSH
        )
        what = f"snapshot {name} of {table}"
        self._master("Snapshot", SnapshotRequest(snapshot=description), ProcedureStarted, what)
        budget = self._cluster.budget(what, _SNAPSHOT_S_MAX)
        while True:
            request = IsSnapshotDoneRequest(snapshot=description)
            if self._master("IsSnapshotDone", request, IsSnapshotDoneResponse, what).done:
                return
            self._cluster.run(pause_for(budget))

    def clone_snapshot(self, name: str, table: str) -> None:
        """Create the table from the snapshot. A disabled table of that name is replaced; an enabled one is an error."""
        description = SnapshotDescription(name=name, table=self._cluster.names.physical(table))
        what = f"restoring snapshot {name} as {table}"
        request = RestoreSnapshotRequest(snapshot=description)
        reply = self._master("RestoreSnapshot", request, RestoreSnapshotResponse, what)
        self._cluster.run(self._wait(reply.proc_id, self._cluster.budget(what, _SNAPSHOT_S_MAX)))
        self._cluster.operations.cache.forget_table(table)

    def snapshots(self) -> list[str]:
        """Return the names of all complete snapshots of the cluster."""
        request = GetCompletedSnapshotsRequest()
        reply = self._master("GetCompletedSnapshots", request, GetCompletedSnapshotsResponse, "listing snapshots")
        return sorted(snapshot.name for snapshot in reply.snapshots)

    def delete_snapshots(self, names: Sequence[str]) -> None:
        """Delete snapshots. Idempotent: a missing snapshot counts as deleted, by another client or by an attempt whose
        reply was lost."""
        for name in names:
            request = DeleteSnapshotRequest(snapshot=SnapshotDescription(name=name))
            try:
                self._master("DeleteSnapshot", request, DeleteSnapshotResponse, f"deleting snapshot {name}")
            except (Misuse, Unavailable) as error:
                if "SnapshotDoesNotExistException" not in error.message:
                    raise

    def _name(self, table: str) -> TableName:
        return name_of(self._cluster.names.physical(table))

    def _in_hbase(self, descriptor: TableDescriptor) -> TableDescriptor:
        return replace(descriptor, name=self._cluster.names.physical(descriptor.name))

    def _procedure(self, method: str, request: Message, what: str) -> None:
        budget = self._cluster.budget(what)
        started = self._cluster.run(self._ask_master(method, request, ProcedureStarted, budget))
        if started.HasField("proc_id"):
            self._cluster.run(self._wait(started.proc_id, budget))

    def _master(self, method: str, request: Message, reply: type[M], what: str) -> M:
        return self._cluster.run(self._ask_master(method, request, reply, self._cluster.budget(what)))

    async def _ask_master(self, method: str, request: Message, reply: type[M], budget: Budget) -> M:
        call = Call(MASTER, method, request.SerializeToString())
        while True:
            master = await find_server(Role.MASTER, budget)
            answer = await ask_server(master, call, budget)
            if has_succeeded(answer):
                return parsed(reply, answer)
            _raise_if_not_retryable(failure_of(answer), budget)
            await budget.pause()

    async def _wait(self, procedure_id: int, budget: Budget) -> None:
        request = GetProcedureResultRequest(proc_id=procedure_id)
        while True:
            reply = await self._ask_master("getProcedureResult", request, GetProcedureResultResponse, budget)
            if reply.state == GetProcedureResultResponse.FINISHED:
                if reply.HasField("exception"):
                    generic = reply.exception.generic_exception
                    raise RemoteFailure(generic.class_name, generic.message, do_not_retry=True).as_error(budget.what)
                return
            if reply.state == GetProcedureResultResponse.NOT_FOUND:
                return  # the procedure ended so long ago that the master no longer lists it
            await pause_for(budget)

    def _region(self, method: str, region: Region, request: Message, reply: type[M]) -> M:
        what = f"{method} of {region.name!r}"
        return self._cluster.run(self._ask_region(method, region, request, reply, self._cluster.budget(what)))

    async def _ask_region(self, method: str, region: Region, request: Message, reply: type[M], budget: Budget) -> M:
        call = Call(ADMIN, method, request.SerializeToString())
        present = region
        while True:
            if present.server is not None:
                answer = await ask_server(present.server, call, budget)
                if has_succeeded(answer):
                    return parsed(reply, answer)
                _raise_if_not_retryable(failure_of(answer), budget)
                await budget.pause()
            # Look up the region again by its first row: it may have moved since it was listed.
            operations = self._cluster.operations
            if known := operations.cache.find(region.table, region.key_range.start):
                operations.cache.forget_region(known)
            present = await operations.locate(region.table, region.key_range.start, budget)
            if present.name != region.name:
                raise _Reshaped(f"{budget.what}: the region was split or merged meanwhile; list the regions again")


def _raise_if_not_retryable(failure: Failure, budget: Budget) -> None:
    budget.last = failure
    if isinstance(failure, RemoteFailure) and failure.reaction is Reaction.FAIL:
        raise failure.as_error(budget.what)


async def pause_for(budget: Budget) -> None:
    """Wait until the next poll. Raises if the budget's time is up. A poll does not count as a failed attempt."""
    budget.tries = 0
    budget.pause()
    await Pause(_POLL_S)


def name_of(table: str) -> TableName:
    namespace, qualifier = table_name(table)
    return TableName(namespace=namespace, qualifier=qualifier)


def schema_of(descriptor: TableDescriptor) -> TableSchema:
    schema = TableSchema(table_name=name_of(descriptor.name))
    for key, value in descriptor.attributes.items():
        schema.attributes.add(first=key, second=value)
    for family in descriptor.families:
        attributes = {**family.attributes, b"VERSIONS": b"%d" % family.versions_max}
        if family.ttl_s is not None:
            attributes[b"TTL"] = b"%d" % family.ttl_s
        message = schema.column_families.add(name=family.name)
        for key, value in attributes.items():
            message.attributes.add(first=key, second=value)
    return schema


def _descriptor(schema: TableSchema) -> TableDescriptor:
    families = []
    for family in schema.column_families:
        attributes = {pair.first: pair.second for pair in family.attributes}
        ttl = attributes.get(b"TTL", b"FOREVER").decode()
        families.append(
            FamilyDescriptor(
                family.name,
                int(attributes.get(b"VERSIONS", b"1")),
                None if ttl in ("FOREVER", "2147483647") else int(ttl.split()[0]),
                attributes,
            )
        )
    return TableDescriptor(
        table_of(schema.table_name.namespace, schema.table_name.qualifier),
        tuple(families),
        {pair.first: pair.second for pair in schema.attributes},
    )
