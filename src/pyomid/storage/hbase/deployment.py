"""One database in HBase: its system tables, and what `wiring` opens over one client.

`pyomid init` makes the tables once, two of them as Apache Omid's own tool does.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass

from pyomid.errors import Misuse, UnknownTable
from pyomid.ports import CeilingStore
from pyomid.storage.hbase.catalog import HBaseCatalog
from pyomid.storage.hbase.codec.layout import (
    COMMIT_FAMILY,
    COMMIT_TABLE,
    META_FAMILY,
    META_TABLE,
    TIMESTAMP_FAMILY,
    TIMESTAMP_TABLE,
    WATERMARK_FAMILY,
    commit_table_splits,
)
from pyomid.storage.hbase.commit_table import HBaseCommitTable
from pyomid.storage.hbase.leader_state import HBaseLeaderState
from pyomid.storage.hbase.regions.admin import Admin, FamilyDescriptor, TableDescriptor
from pyomid.storage.hbase.regions.token_service import TokenKeeper, credentials_of, token_steps
from pyomid.storage.hbase.rpc.client import Cluster
from pyomid.storage.hbase.rpc.handshake import Handshake, SaslHandshake, TokenHandshake
from pyomid.storage.hbase.rpc.requests import Durability
from pyomid.storage.hbase.security.digest_md5 import Credentials
from pyomid.storage.hbase.security.kerberos import Kerberos, KerberosOptions
from pyomid.storage.hbase.security.sasl import Protection
from pyomid.storage.hbase.store import HBaseStore
from pyomid.storage.hbase.timestamp_ceiling import ChosenCeiling, HBaseCeiling, ZooKeeperCeiling
from pyomid.storage.hbase.zookeeper import ZooKeeper
from pyomid.types import TaskToken

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HBaseDatabase:
    """`close` ends the connections of all of them."""

    cluster: Cluster
    store: HBaseStore
    commit_table: HBaseCommitTable
    leader_state: HBaseLeaderState
    catalog: HBaseCatalog
    ceiling: ChosenCeiling

    @property
    def zookeeper(self) -> ZooKeeper:
        return self.cluster.zookeeper

    def close(self) -> None:
        self.cluster.close()


@dataclass(frozen=True, slots=True)
class HBaseOptions:
    """The options of a deployment, named as in URLs (`config.Settings`)."""

    ceiling: str = "hbase"
    durability: str = "table"
    others_seal: bool = False
    kerberos: KerberosOptions | None = None
    tls: ssl.SSLContext | None = None
    """To HBase's servers."""
    zookeeper_tls: ssl.SSLContext | None = None
    token: Callable[[], TaskToken | None] | None = None
    """In place of Kerberos: the newest delegation token that this process was sent. Once it has expired, Kerberos after
    all. ZooKeeper is shown none."""


def open_zookeeper(quorum: str, znode: str, options: HBaseOptions, *, session_s: float = 10.0) -> ZooKeeper:
    """Its session, as the user that the options name; not connected before its first use."""
    return _zookeeper(quorum, znode, _user_of(options), options, session_s=session_s)


def open_cluster(quorum: str, znode: str, options: HBaseOptions, *, deadline_s: float) -> Cluster:
    """The client of HBase and ZooKeeper; nothing is connected before its first use. `Misuse` for Kerberos without its
    library or keytab."""
    user = _user_of(options)
    handshake: Handshake | None = None
    if (newest := options.token) is not None:
        handshake = TokenHandshake(
            lambda: _living(newest()),
            _wanted_by_token(options),
            otherwise=lambda: _by_ticket(Kerberos(options.kerberos or KerberosOptions())),
        )
    elif user is not None:
        handshake = _by_ticket(user)
    return Cluster(
        _zookeeper(quorum, znode, user, options),
        handshake=handshake,
        deadline_s=deadline_s,
        durability=Durability[options.durability.upper()],
        tls=options.tls,
    )


def _user_of(options: HBaseOptions) -> Kerberos | None:
    return Kerberos(options.kerberos) if options.kerberos is not None and options.token is None else None


def _by_ticket(user: Kerberos) -> SaslHandshake:
    known = user.options
    return SaslHandshake(user, known.hbase_principal, known.protection, run_as=known.run_as)


def _wanted_by_token(options: HBaseOptions) -> Protection | None:
    """By token there is no privacy; TLS gives it."""
    wanted = options.kerberos.protection if options.kerberos is not None else None
    return None if wanted is Protection.PRIVACY and options.tls is not None else wanted


def _living(token: TaskToken | None) -> Credentials | None:
    return credentials_of(token) if token is not None and time.time() * 1000 < token.expires_ms else None


def token_keeper(cluster: Cluster) -> TokenKeeper:
    """What gives delegation tokens of this client's user, who came by Kerberos."""
    return TokenKeeper(
        lambda: cluster.run(token_steps(cluster.operations, cluster.budget("fetching a delegation token")))
    )


def task_tokens(cluster: Cluster, options: HBaseOptions) -> Callable[[], TaskToken | None]:
    """The token for processes of other machines. None without Kerberos, or if HBase gives none: they then need a ticket
    of their own. A process that was given a token passes that on."""
    if options.token is not None:
        return options.token
    if options.kerberos is None:
        return lambda: None
    keeper, is_told = token_keeper(cluster), bool(options.kerberos.keytab)

    def newest() -> TaskToken | None:
        nonlocal is_told
        try:
            return keeper()
        except Misuse as error:
            if not is_told:
                log.warning("tasks are given no delegation token, and need a ticket of their own: %s", error)
            is_told = True
            return None

    return newest


def _zookeeper(
    quorum: str, znode: str, user: Kerberos | None, options: HBaseOptions, *, session_s: float = 10.0
) -> ZooKeeper:
    principal = user.options.zookeeper_principal if user is not None else ""
    sasl = (user, principal) if user and principal else None
    return ZooKeeper(quorum, znode, session_s=session_s, sasl=sasl, tls=options.zookeeper_tls)


def open_hbase(quorum: str, znode: str, *, deadline_s: float, options: HBaseOptions | None = None) -> HBaseDatabase:
    """Opens it; nothing is connected before its first use. Each operation is repeated for `deadline_s`."""
    options = options or HBaseOptions()
    cluster = open_cluster(quorum, znode, options, deadline_s=deadline_s)
    leader_state = HBaseLeaderState(cluster)
    return HBaseDatabase(
        cluster,
        HBaseStore(cluster, read_watermark=lambda: leader_state.read_watermarks()[0]),
        HBaseCommitTable(cluster, others_seal=options.others_seal, leader_state=leader_state),
        leader_state,
        HBaseCatalog(cluster),
        chosen_ceiling(cluster, options.ceiling),
    )


def chosen_ceiling(cluster: Cluster, place: str) -> ChosenCeiling:
    places: dict[str, CeilingStore] = {"hbase": HBaseCeiling(cluster), "zookeeper": ZooKeeperCeiling(cluster.zookeeper)}
    return ChosenCeiling(places.pop(place), places)


def create_database(cluster: Cluster, *, commit_table_regions: int = 16) -> list[str]:
    """Makes the missing tables and returns their names. Tables that Java Omid made are used as they are. Idempotent."""
    admin = Admin(cluster)
    made = []
    for descriptor, splits in (
        (TableDescriptor(META_TABLE, (FamilyDescriptor(META_FAMILY, 1),)), []),
        (
            TableDescriptor(COMMIT_TABLE, (FamilyDescriptor(COMMIT_FAMILY, 1), FamilyDescriptor(WATERMARK_FAMILY, 1))),
            commit_table_splits(commit_table_regions),
        ),
        (TableDescriptor(TIMESTAMP_TABLE, (FamilyDescriptor(TIMESTAMP_FAMILY, 1),)), []),
    ):
        if admin.create_table(descriptor, splits):
            made.append(descriptor.name)
    return made


def check_database(cluster: Cluster) -> None:
    """`UnknownTable`, with what to do, if the database was never made; `Misuse` or `Unavailable` if there is no
    HBase. It waits for one that is starting."""
    if missing := cluster.lacking(sorted((META_TABLE, COMMIT_TABLE))):
        raise UnknownTable(
            f"HBase at {cluster.zookeeper.quorum} has no table {', '.join(missing)}: run `pyomid init URL` once",
            table=missing[0],
        )
