"""The TSO's own durable state: the leader state (`LeaderState`) and the timestamp ceiling.

The leader state is one row of PYOMID_META. Each change compares and sets the cell `state`, which has a fixed size:

    state        format, nonce, revision, epoch, ceiling, W, H        49 bytes, read after each flush
    l<start>     a lease                                              written in the same mutation, on condition that
    p<start>     a pending record: its branches, 8 bytes each         `state` still holds what the writer read
    retention    how long history is kept, in milliseconds            written like leases and pending records
    id           the database's random id, put once

The version of a cell is the revision that wrote or deleted it, so that the server's clock does not decide which cell is
newest. Each change adds one to the revision, and the nonce distinguishes two writers of the same revision: if a dead
process's write arrives late, it finds another state and has no effect.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError

from pyomid.checks import deposed
from pyomid.errors import Corruption, Misuse, Unavailable
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.codec.keyvalues import DELETE_COLUMN, LATEST, KeyValue
from pyomid.omid.hbase.codec.layout import (
    META_FAMILY,
    META_TABLE,
    TIMESTAMP_FAMILY,
    TIMESTAMP_QUALIFIER,
    TIMESTAMP_ROW,
    WATERMARK_FAMILY,
    WATERMARK_QUALIFIER,
    WATERMARK_ROW,
    SystemNames,
    timestamp_bytes,
    timestamp_of,
)
from pyomid.omid.hbase.meta_cells import MetaCells
from pyomid.omid.hbase.rpc.requests import INDETERMINATE, Mutation, RowCondition, RowGet, RowMutation, deletes, puts
from pyomid.omid.hbase.zookeeper import ZooKeeper
from pyomid.omid.ports import CeilingStore, LeaderState
from pyomid.types import LeaderRecord, LeaderStateChanges, PendingCommit

ROW: Final = b"epoch"
_STATE: Final = b"state"
STATE_CELL: Final = ROW, _STATE
_LEASE: Final = b"l"
_PENDING: Final = b"p"
_RETENTION: Final = b"retention"
_ID: Final = b"id"
_NAMES: Final = b"names"
_FORMAT: Final = 1
_FIELDS: Final = struct.Struct(">B8sQQQQQ")
_ATTEMPTS_MAX: Final = 50
_PRESENT: Final = b"\x01"


@dataclass(frozen=True, slots=True)
class _State:
    """The content of the cell `state`."""

    nonce: bytes = bytes(8)
    revision: int = 0
    epoch: int = 0
    ceiling: int = 0
    watermark: int = 0
    horizon: int = 0

    def encode(self) -> bytes:
        return _FIELDS.pack(_FORMAT, self.nonce, self.revision, self.epoch, self.ceiling, self.watermark, self.horizon)

    @classmethod
    def decode(cls, value: bytes) -> _State:
        if not value:
            return cls()
        if len(value) != _FIELDS.size or value[0] != _FORMAT:
            raise Corruption(f"the leader state does not have format {_FORMAT}: {value[:16]!r} ({len(value)} bytes)")
        return cls(*_FIELDS.unpack(value)[1:])


class HBaseLeaderState(LeaderState):
    """The leader state in HBase (`ports.LeaderState`). Once W is durable here, it is copied to the row that Java's
    coprocessor reads."""

    def __init__(self, cluster: Cluster, *, table: str = META_TABLE, commit_table: str = "") -> None:
        """`commit_table` is the cluster's by default."""
        self._cluster = cluster
        self._commit_table = commit_table or cluster.names.commit_table
        self._cells = MetaCells(cluster, table=table)
        self.table = table
        self._nonce = os.urandom(8)

    def database_id(self) -> bytes:
        self._cells.change(ROW, _ID, lambda found: None if found else os.urandom(16))
        return self._cells.read(ROW, _ID)

    def keep_names(self) -> None:
        """If no TSO has led yet, store the names that this client uses for the deployment. Raises `Misuse` if the
        deployment has other names."""
        wanted = _names_bytes(self._cluster.names)
        if not self.read().epoch:
            self._cells.change(ROW, _NAMES, lambda found: None if found == wanted else wanted)
        self.check_names()

    def check_names(self) -> None:
        """Raise `Misuse` if the deployment was created with other names: this client would find another TSO, or look up
        commits in another table."""
        found = self._cells.read(ROW, _NAMES) or _names_bytes(SystemNames())
        names = _names_bytes(self._cluster.names)
        if found != names:
            raise Misuse(
                f"the database in {self._cluster.names.physical(self.table)} was created with the options "
                f"{found.decode()}, but this URL has {names.decode()}; give every URL of a database the same options; "
                "for a second database in one HBase, choose a commit table in another HBase namespace "
                "(commitTableName=NAMESPACE:OMID_COMMIT_TABLE)",
                created=found.decode(),
            )

    def id_if_known(self) -> bytes:
        """Return the database's id; empty if no TSO of pyomid has set one."""
        return self._cells.read(ROW, _ID)

    def read(self) -> LeaderRecord:
        return _leader_record(self._cells.read_row(ROW))

    @property
    def state_get(self) -> RowGet:
        """Return a get in `table` of the one cell that `epoch_of` and `watermarks_of` decode."""
        return RowGet(ROW, ((META_FAMILY, (_STATE,)),), max_versions=1)

    @staticmethod
    def epoch_of(found: list[KeyValue]) -> int:
        return _State.decode(found[0].value if found else b"").epoch

    @staticmethod
    def watermarks_of(found: list[KeyValue]) -> tuple[int, int]:
        """Return (W, H)."""
        return decode_watermarks(found[0].value if found else b"")

    def read_watermarks(self) -> tuple[int, int]:
        return decode_watermarks(self._cells.read(*STATE_CELL))

    def take_over(self, *, expected: int, epoch: int, ceiling: int) -> bool:
        for _ in range(_ATTEMPTS_MAX):
            old = self._cells.read(ROW, _STATE)
            state = _State.decode(old)
            if state.epoch != expected or state.ceiling > epoch:
                return False
            if self._swap(old, replace(state, epoch=epoch, ceiling=ceiling)):
                return True
        raise Unavailable(f"other writers changed the leader state in each of {_ATTEMPTS_MAX} attempts; try again")

    def update(self, epoch: int, changes: LeaderStateChanges) -> None:
        for _ in range(_ATTEMPTS_MAX):
            old = self._cells.read(ROW, _STATE)
            state = _State.decode(old)
            if state.epoch != epoch:
                raise deposed(epoch, state.epoch)
            if self._swap(old, _changed(state, changes), changes):
                if changes.watermark is not None:
                    self._copy_watermark(changes.watermark)
                return
        raise Unavailable(f"other writers changed the leader state in each of {_ATTEMPTS_MAX} attempts; try again")

    def _copy_watermark(self, watermark: int) -> None:
        """Copy W for Java's coprocessor; pyomid never reads the copy. If the copy is late or lost, the coprocessor sees
        a lower W, which is safe."""
        cell = KeyValue(WATERMARK_ROW, WATERMARK_FAMILY, WATERMARK_QUALIFIER, LATEST, timestamp_bytes(watermark))
        self._cluster.rows(self._commit_table, [RowMutation(WATERMARK_ROW, (puts([cell]),))])

    def _swap(self, old: bytes, state: _State, changes: LeaderStateChanges | None = None) -> bool:
        fresh = replace(state, nonce=self._nonce, revision=state.revision + 1)
        others = _mutations(changes or LeaderStateChanges(), fresh.revision)
        return self._cells.swap(ROW, _STATE, old or None, fresh.encode(), version=fresh.revision, others=others)


def decode_watermarks(value: bytes) -> tuple[int, int]:
    """Return (W, H) from the value of `STATE_CELL`."""
    state = _State.decode(value)
    return state.watermark, state.horizon


def _changed(state: _State, changes: LeaderStateChanges) -> _State:
    """Return the changed state. W and H never decrease, whatever `changes` contains."""
    return replace(
        state,
        ceiling=state.ceiling if changes.ceiling is None else changes.ceiling,
        watermark=max(state.watermark, changes.watermark or 0),
        horizon=max(state.horizon, changes.horizon or 0),
    )


def _mutations(changes: LeaderStateChanges, revision: int) -> tuple[Mutation, ...]:
    """Return the mutations of leases, pending records and retention. An item that the change both removes and adds is
    present afterwards."""
    added: dict[bytes, bytes] = {_name(_LEASE, start): _PRESENT for start in changes.leases_added}
    for start, branches in ((pending.start_ts, pending.branches) for pending in changes.pending_added):
        added[_name(_PENDING, start)] = struct.pack(f">B{len(branches)}Q", _FORMAT, *branches)
    if changes.retention_ms is not None:
        added[_RETENTION] = changes.retention_ms.to_bytes(8, "big")
    removed = {_name(_LEASE, start) for start in changes.leases_removed}
    removed |= {_name(_PENDING, start) for start in changes.pending_removed}
    mutations = []
    if added:
        mutations.append(puts([KeyValue(ROW, META_FAMILY, name, revision, value) for name, value in added.items()]))
    if gone := sorted(removed.difference(added)):
        mutations.append(deletes(KeyValue(ROW, META_FAMILY, name, revision, b"", DELETE_COLUMN) for name in gone))
    return tuple(mutations)


def _name(kind: bytes, start: int) -> bytes:
    return kind + start.to_bytes(8, "big")


def _leader_record(row: dict[bytes, bytes]) -> LeaderRecord:
    state = _State.decode(row.get(_STATE, b""))
    leases = frozenset(int.from_bytes(name[1:], "big") for name in row if name[:1] == _LEASE)
    pending = tuple(
        PendingCommit(int.from_bytes(name[1:], "big"), struct.unpack_from(f">{len(value) // 8}Q", value, 1))
        for name, value in sorted(row.items())
        if name[:1] == _PENDING
    )
    retention_ms = int.from_bytes(row.get(_RETENTION, b""), "big")
    return LeaderRecord(state.epoch, state.ceiling, state.watermark, state.horizon, leases, pending, retention_ms)


# The timestamp ceiling. Apache Omid may keep it in either of two stores: an HBase table or a znode.

CEILING_ZNODE = "/omid/timestamp"
"""Apache Omid uses the same path. It adds its namespace, /omid, to all of its paths: in ZooKeeper it is
/omid/omid/timestamp."""


def _names_bytes(names: SystemNames) -> bytes:
    return (
        f"commitTableName={names.commit_table}&timestampTableName={names.timestamp_table}"
        f"&zkNamespace={names.zookeeper_namespace}"
    ).encode()


def chosen_ceiling(cluster: Cluster, name: str) -> ChosenCeiling:
    """Return the timestamp ceiling in the store `name`, "hbase" or "zookeeper"."""
    stores: dict[str, CeilingStore] = {"hbase": HBaseCeiling(cluster), "zookeeper": ZooKeeperCeiling(cluster.zookeeper)}
    return ChosenCeiling(stores.pop(name), stores)


class ChosenCeiling:
    """The ceiling in the store that the option `ceiling` names. `others` are stores where an earlier TSO may have kept
    it.

    A TSO may have handed out every timestamp below its ceiling. If another store holds a higher ceiling, ignoring it
    would hand out timestamps twice.
    """

    def __init__(self, chosen: CeilingStore, others: Mapping[str, CeilingStore]) -> None:
        self._chosen = chosen
        self._others = others

    def read(self) -> int:
        """Return the ceiling. Raises `Misuse` if another store holds a higher one."""
        found = self._chosen.read()
        for name, other in self._others.items():
            higher = other.read()
            if higher > found:
                raise Misuse(
                    f"{name} holds the timestamp ceiling {higher}, which is above the ceiling in use, {found}: set "
                    f"option ceiling={name}, or stop every TSO and run `pyomid init` with the current URL to move the "
                    "ceiling",
                    ceiling=higher,
                )
        return found

    def compare_and_set(self, expected: int, ceiling: int) -> bool:
        return self._chosen.compare_and_set(expected, ceiling)

    def move_here(self) -> int:
        """Raise the ceiling to the highest of all stores, and return it. No TSO may be running."""
        while True:
            found = self._chosen.read()
            highest = max([found, *(other.read() for other in self._others.values())])
            if highest == found or self._chosen.compare_and_set(found, highest):
                return highest


OWNER_ROW: Final = b"PYOMID_DATABASE"
"""A row of the timestamp table; its value is a database's id. Java's TSO reads only its own row."""


class HBaseCeiling:
    """The ceiling in OMID_TIMESTAMP_TABLE. Like Java's TSO, it is changed by compare-and-set on its value."""

    def __init__(self, cluster: Cluster, *, table: str = "") -> None:
        """`table` is the cluster's timestamp table by default."""
        self._cluster = cluster
        self._table = table or cluster.names.timestamp_table

    def read(self) -> int:
        wanted = ((TIMESTAMP_FAMILY, (TIMESTAMP_QUALIFIER,)),)
        (found,) = self._cluster.rows(self._table, [RowGet(TIMESTAMP_ROW, wanted, max_versions=1)])
        assert isinstance(found, list)
        return timestamp_of(found[0].value) if found else 0

    def claim(self, database_id: bytes) -> bytes:
        """Return the id of the database that the table belongs to. If it belonged to none, it now belongs to this
        one."""
        cell = KeyValue(OWNER_ROW, TIMESTAMP_FAMILY, TIMESTAMP_QUALIFIER, LATEST, database_id)
        condition = RowCondition(TIMESTAMP_FAMILY, TIMESTAMP_QUALIFIER, None)
        self._cluster.rows(self._table, [RowMutation(OWNER_ROW, (puts([cell]),), condition)])
        wanted = ((TIMESTAMP_FAMILY, (TIMESTAMP_QUALIFIER,)),)
        (found,) = self._cluster.rows(self._table, [RowGet(OWNER_ROW, wanted, max_versions=1)])
        assert isinstance(found, list)
        return found[0].value if found else b""

    def compare_and_set(self, expected: int, ceiling: int) -> bool:
        """Set the ceiling if it is still `expected`, and return whether it was set. A lost reply also returns False.
        After False the caller reads the ceiling again and tries a higher one."""
        old = timestamp_bytes(expected) if expected else None
        cell = KeyValue(TIMESTAMP_ROW, TIMESTAMP_FAMILY, TIMESTAMP_QUALIFIER, LATEST, timestamp_bytes(ceiling))
        condition = RowCondition(TIMESTAMP_FAMILY, TIMESTAMP_QUALIFIER, old)
        (result,) = self._cluster.rows(self._table, [RowMutation(TIMESTAMP_ROW, (puts([cell]),), condition)])
        return result is not INDETERMINATE and bool(result)


class ZooKeeperCeiling:
    """The ceiling in the znode `timestamp` of Omid's namespace, changed by compare-and-set on the znode's version."""

    def __init__(self, zookeeper: ZooKeeper, *, path: str = "") -> None:
        self._zookeeper = zookeeper
        self._path = path or f"{zookeeper.namespace}{CEILING_ZNODE}"

    def read(self) -> int:
        return self._read()[0]

    def compare_and_set(self, expected: int, ceiling: int) -> bool:
        ask = self._zookeeper.ask
        try:
            found, version = self._read()
            if found != expected:
                return False
            if version < 0:
                ask("create", self._path, timestamp_bytes(ceiling), makepath=True)
            else:
                ask("set", self._path, timestamp_bytes(ceiling), version=version)
        except (BadVersionError, NodeExistsError):
            return False
        except KazooException as error:
            raise Unavailable(f"ZooKeeper did not reply to a request for {self._path}: {error!r}") from error
        return True

    def _read(self) -> tuple[int, int]:
        """Return the ceiling and the znode's version; (0, -1) if there is no znode."""
        zookeeper = self._zookeeper
        try:
            content, stat = zookeeper.session().retry(zookeeper.ask, "get", self._path)
        except NoNodeError:
            return 0, -1
        except KazooException as error:
            raise Unavailable(f"ZooKeeper did not reply to a request for {self._path}: {error!r}") from error
        return timestamp_of(content), stat.version
