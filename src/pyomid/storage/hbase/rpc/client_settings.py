"""The settings that the blocking and the asyncio client of a cluster share."""

from __future__ import annotations

from typing import Final

from pyomid.storage.hbase.regions.locations import LocationCache, parse_master_znode, parse_meta_znode
from pyomid.storage.hbase.regions.operations import Budget, FindServer, RegionOperations, Role
from pyomid.storage.hbase.rpc.frames import Address
from pyomid.storage.hbase.rpc.handshake import Handshake, SimpleHandshake
from pyomid.storage.hbase.rpc.requests import Durability
from pyomid.storage.hbase.zookeeper import ZooKeeper

CONNECT_S_MAX: Final = 5.0


class ClusterClient:
    """The cluster, and time limits: `deadline_s` for each operation, at most `call_s_max` for each of its calls."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        *,
        user: str | None = None,
        handshake: Handshake | None = None,
        deadline_s: float = 60.0,
        call_s_max: float = 20.0,
        durability: Durability = Durability.TABLE,
    ) -> None:
        """`handshake`: simple authentication as `user` by default."""
        self.zookeeper = zookeeper
        self.deadline_s = deadline_s
        self.operations = RegionOperations(LocationCache(), durability=durability)
        self.call_s_max = call_s_max
        self.handshake = handshake or SimpleHandshake(user)

    def budget(self, what: str, deadline_s: float | None = None) -> Budget:
        return Budget(what, self.deadline_s if deadline_s is None else deadline_s, self.call_s_max)

    def _find(self, request: FindServer) -> Address:
        content = self.zookeeper.read_hbase(request.role.value)
        return parse_meta_znode(content) if request.role is Role.META else parse_master_znode(content)
