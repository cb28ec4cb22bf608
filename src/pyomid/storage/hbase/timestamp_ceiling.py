"""`CeilingStore` over the two stores in which Apache Omid may keep its timestamp ceiling: an HBase table or a znode."""

from __future__ import annotations

from collections.abc import Mapping

from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError

from pyomid.errors import Misuse, Unavailable
from pyomid.ports import CeilingStore
from pyomid.storage.hbase.cluster import Cluster
from pyomid.storage.hbase.codec.keyvalues import LATEST, KeyValue
from pyomid.storage.hbase.codec.layout import (
    TIMESTAMP_FAMILY,
    TIMESTAMP_QUALIFIER,
    TIMESTAMP_ROW,
    TIMESTAMP_TABLE,
    timestamp_bytes,
    timestamp_of,
)
from pyomid.storage.hbase.rpc.requests import INDETERMINATE, RowCondition, RowGet, RowMutation, puts
from pyomid.storage.hbase.zookeeper import ZooKeeper

CEILING_ZNODE = "/omid/timestamp"
"""As in Apache Omid, which adds the namespace /omid to all of its paths: in ZooKeeper it is /omid/omid/timestamp."""


class ChosenCeiling:
    """The ceiling in the store that option `ceiling` names. `others`: stores where an earlier TSO may have kept it.

    A TSO may have handed out every timestamp below its ceiling. If another store holds a higher ceiling, ignoring it
    would hand out timestamps twice.
    """

    def __init__(self, chosen: CeilingStore, others: Mapping[str, CeilingStore]) -> None:
        self._chosen = chosen
        self._others = others

    def read(self) -> int:
        """Return the ceiling. `Misuse` if another store holds a higher one."""
        found = self._chosen.read()
        for name, other in self._others.items():
            higher = other.read()
            if higher > found:
                raise Misuse(
                    f"{name} holds the timestamp ceiling {higher}, above {found}, the one in use: set option "
                    f"ceiling={name}, or stop every TSO and run `pyomid init` with the present URL to move the ceiling",
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


class HBaseCeiling:
    """The ceiling in OMID_TIMESTAMP_TABLE, changed by compare-and-set on its value, like Java's TSO."""

    def __init__(self, cluster: Cluster, *, table: str = TIMESTAMP_TABLE) -> None:
        self._cluster = cluster
        self._table = table

    def read(self) -> int:
        wanted = ((TIMESTAMP_FAMILY, (TIMESTAMP_QUALIFIER,)),)
        (found,) = self._cluster.rows(self._table, [RowGet(TIMESTAMP_ROW, wanted, max_versions=1)])
        assert isinstance(found, list)
        return timestamp_of(found[0].value) if found else 0

    def compare_and_set(self, expected: int, ceiling: int) -> bool:
        """Return whether the ceiling was set. False also if the reply was lost: the caller then reads the ceiling again
        and tries a higher one."""
        old = timestamp_bytes(expected) if expected else None
        cell = KeyValue(TIMESTAMP_ROW, TIMESTAMP_FAMILY, TIMESTAMP_QUALIFIER, LATEST, timestamp_bytes(ceiling))
        condition = RowCondition(TIMESTAMP_FAMILY, TIMESTAMP_QUALIFIER, old)
        (result,) = self._cluster.rows(self._table, [RowMutation(TIMESTAMP_ROW, (puts([cell]),), condition)])
        return result is not INDETERMINATE and bool(result)


class ZooKeeperCeiling:
    """The ceiling in the znode `timestamp` of Omid's namespace, changed by compare-and-set on the znode's version."""

    def __init__(self, zookeeper: ZooKeeper, *, path: str = f"/omid{CEILING_ZNODE}") -> None:
        self._zookeeper = zookeeper
        self._path = path

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
            raise Unavailable(f"ZooKeeper did not answer for {self._path}: {error!r}") from error
        return True

    def _read(self) -> tuple[int, int]:
        """Return ceiling and znode version; (0, -1) if there is no znode."""
        zookeeper = self._zookeeper
        try:
            content, stat = zookeeper.session().retry(zookeeper.ask, "get", self._path)
        except NoNodeError:
            return 0, -1
        except KazooException as error:
            raise Unavailable(f"ZooKeeper did not answer for {self._path}: {error!r}") from error
        return timestamp_of(content), stat.version
