"""A real HBase whose access controller asks each user for rights; users are believed by their names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyomid.cli.hbase import HBaseServer
from pyomid.errors import Misuse
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.codec.keyvalues import LATEST, KeyValue
from pyomid.omid.hbase.regions.admin import Admin
from pyomid.omid.hbase.rpc.failures import is_denied
from pyomid.omid.hbase.rpc.requests import RowGet, RowMutation, puts
from pyomid.omid.hbase.zookeeper import ZooKeeper

_CONTROLLER: Final = "org.apache.hadoop.hbase.security.access.AccessController"
_RIGHTS_TABLE: Final = "hbase:acl"
GLOBAL: Final = _RIGHTS_TABLE


def guarded_server(folder: Path) -> HBaseServer:
    """Not started. Whoever starts it may do everything."""
    classes = {f"hbase.coprocessor.{role}.classes": _CONTROLLER for role in ("master", "region", "regionserver")}
    return HBaseServer(folder, heap_mb=512, settings={"hbase.security.authorization": "true", **classes})


class Rights:
    """What users may do, as HBase's shell grants it: rows of its own table, which the servers watch."""

    def __init__(self, superuser: Cluster) -> None:
        self._superuser = superuser
        self._granted = 0

    def grant(self, user: str, where: str, rights: str) -> None:
        """`where`: a table, "@" and a namespace, or `GLOBAL`. `rights`: letters of RWXCA. See `wait_until_known`."""
        row = where.encode()
        cell = KeyValue(row, b"l", user.encode(), LATEST, rights.encode())
        self._superuser.rows(_RIGHTS_TABLE, [RowMutation(row, (puts([cell]),))])

    def wait_until_known(self, table: str) -> None:
        """All that was granted before counts now at master and region server: each takes changes in their order."""
        self._granted += 1
        name = f"the last {self._granted}"
        self.grant(name, table, "RC")
        last = Cluster(ZooKeeper(self._superuser.zookeeper.quorum), user=name, deadline_s=30.0)
        while not (_may(lambda: Admin(last).table(table)) and _may(lambda: last.rows(table, [RowGet(b"r")]))):
            pass
        last.close()


def _may(act: Callable[[], object]) -> bool:
    try:
        act()
    except Misuse as error:
        if not is_denied(error):
            raise
        return False
    return True
