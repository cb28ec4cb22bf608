"""Choose the implementations of a database's ports by its URL. Only this module and the command line may import every
package; they import only the parts that the URL needs.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyomid.config import (
    Address,
    EmbeddedAddress,
    HBaseAddress,
    MemoryAddress,
    Settings,
    duration_s,
    parse_url,
)
from pyomid.errors import Misuse, OmidError
from pyomid.ports import Deployment, boot_clock

if TYPE_CHECKING:
    import ssl

    from pyomid.database.async_database import AsyncDatabase
    from pyomid.database.database import Database
    from pyomid.database.upkeep.folder import FolderUpkeep
    from pyomid.folder.environment import Environment
    from pyomid.folder.file_note import NoteKeeper
    from pyomid.folder.loop_session import LoopSession
    from pyomid.folder.session import FolderSession
    from pyomid.observe import Observer
    from pyomid.omid.client.async_session import AsyncTsoSession, ConnectedSocket
    from pyomid.omid.client.request_retry import SessionOptions
    from pyomid.omid.hbase.coordination import AnnouncedTso, UpkeepTurn
    from pyomid.omid.hbase.zookeeper import ZooKeeper
    from pyomid.omid.oracle.settings import TsoSettings
    from pyomid.omid.tso.leadership import Leadership
    from pyomid.omid.tso.store_calls import TsoStores
    from pyomid.types import Backup, BackupMoment, Progress, TaskToken

log = logging.getLogger(__name__)

_TSO_STORE_TRY_S: Final = 10.0
"""How long a store call of a TSO over HBase retries by itself. The TSO's state machine then repeats the call for
longer."""


def open_database(url: str, *, observers: Sequence[Observer] = (), **options: Any) -> Database:
    """Do the work of `pyomid.connect`. The returned database owns its deployment."""
    from pyomid.database.database import Database

    return Database(open_deployment(url, **options), url=url, observers=observers)


async def open_async_database(url: str, *, observers: Sequence[Observer] = (), **options: Any) -> AsyncDatabase:
    """Do the work of `pyomid.aio.connect`. The returned database owns its deployment."""
    from pyomid.daemon_threads import in_daemon_thread
    from pyomid.database.async_database import AsyncDatabase

    database = await in_daemon_thread(lambda: open_database(url, observers=observers, **options))
    loop_session = database._core.deployment.loop_session
    return AsyncDatabase(database, loop_session() if loop_session is not None else None)


def _open_folder(address: EmbeddedAddress, settings: Settings) -> Path:
    """Create or open the folder, for the users that the settings allow, and return its path."""
    from pyomid.folder.layout import open_folder

    return open_folder(address.folder, create=settings.create, shared=settings.folder_access == "group")


def open_tso_stores(store: str) -> tuple[TsoStores, Callable[[], None]]:
    """Return the stores of a TSO at the URL `store`, and a function that closes them."""
    from pyomid.omid.tso.store_calls import TsoStores

    address, settings = parse_url(store)
    match address:
        case MemoryAddress():
            from pyomid.omid.memory import MemoryCatalog, MemoryCommitTable, MemoryLeaderState

            return TsoStores(MemoryCommitTable(), MemoryLeaderState(), MemoryCatalog()), lambda: None
        case EmbeddedAddress(folder):
            raise Misuse(f"a folder needs no TSO: open {folder} with pyomid.connect", folder=folder)
        case HBaseAddress(quorum, znode):
            from pyomid.omid.hbase.deployment import check_database, claim_database, hbase_options, open_hbase

            database = open_hbase(quorum, znode, deadline_s=_TSO_STORE_TRY_S, options=hbase_options(settings))

            def check() -> None:
                check_database(database.cluster)
                claim_database(database.cluster)
                database.ceiling.read()  # a standby with another value of option `ceiling` could not take over

            stores = TsoStores(
                database.commit_table,
                database.leader_state,
                database.catalog,
                database.ceiling,
                check=check,
            )
            return stores, database.close


def open_leadership(store: str, address: str, *, lease_s: float) -> Leadership | None:
    """Return the leader election of a TSO that serves `store` and is reached at `address`. None if the store needs no
    election."""
    place, settings = parse_url(store)
    if not isinstance(place, HBaseAddress):
        return None
    from pyomid.omid.hbase.coordination import LeaderLease
    from pyomid.omid.hbase.deployment import hbase_options, open_zookeeper

    zookeeper = open_zookeeper(place.quorum, place.znode, hbase_options(settings), session_s=lease_s)
    return LeaderLease(zookeeper, address, clock=boot_clock, period_s=lease_s)


def open_upkeep_turn(url: str, name: str) -> UpkeepTurn:
    """Return the lock with which only one process of a cluster at a time does the upkeep called `name`. Raise `Misuse`
    if the database is not over HBase."""
    place, settings = parse_url(url)
    if not isinstance(place, HBaseAddress):
        raise Misuse(
            f"--every needs a database over HBase, which {url} is not; programs that open a folder compact and "
            "sanitize the folder in the background (option upkeepShare)",
            url=url,
        )
    from pyomid.omid.hbase.coordination import UpkeepTurn
    from pyomid.omid.hbase.deployment import hbase_options, open_zookeeper

    return UpkeepTurn(open_zookeeper(place.quorum, place.znode, hbase_options(settings)), name)


def is_made(url: str) -> bool:
    """Whether there may be a database at the URL: False only for a folder that holds none. An invalid URL counts as
    True, because opening it raises the error."""
    try:
        address, _ = parse_url(url)
    except Misuse:
        return True
    if not isinstance(address, EmbeddedAddress):
        return True
    from pyomid.folder import layout

    return layout.is_made(Path(address.folder))


def restore_database(
    backup: str | os.PathLike[str],
    url: str,
    *,
    tables: Mapping[str, str] | Iterable[str] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Backup:
    """Do the work of `pyomid.restore`."""
    address, settings = parse_url(url, **options)
    match address:
        case EmbeddedAddress():
            if tables is not None:
                raise Misuse(
                    "a restore into a folder restores all tables; do not select tables (only a restore into HBase can "
                    "select them)"
                )
            from pyomid.folder.backup import restore

            return restore(backup, address.folder, shared=settings.folder_access == "group", progress=progress)
        case HBaseAddress():
            return _restore_tables(backup, address, settings, tables)
        case _:
            raise Misuse(f"cannot restore a backup into {url}: give omid:///FOLDER or omid+hbase://…")


def _restore_tables(
    backup: object,
    address: HBaseAddress,
    settings: Settings,
    tables: Mapping[str, str] | Iterable[str] | None,
) -> Backup:
    from pyomid.database.upkeep.backups import restore
    from pyomid.omid.hbase.backup import HBaseRestore, backup_of
    from pyomid.omid.hbase.deployment import hbase_options, open_cluster

    with ExitStack() as last_first:
        deadline_s = settings.store_retry_seconds
        cluster = open_cluster(address.quorum, address.znode, hbase_options(settings), deadline_s=deadline_s)
        last_first.callback(cluster.close)
        deployment = deployment_at(address, settings)
        last_first.callback(deployment.close)
        source = HBaseRestore(cluster, backup)
        return backup_of(source.manifest, cluster, restore(deployment, source, tables))


def open_deployment(
    url: str, *, sent_token: Callable[[], TaskToken | None] | None = None, **options: Any
) -> Deployment:
    """Return the open deployment that a client of the database needs; the caller closes it. `sent_token` returns the
    newest delegation token that was sent to this process (`Deployment.task_token`).

    Raise `Misuse` for a bad URL or option, `Unavailable` if no TSO or store replies, and `Corruption` for a folder
    whose files contradict its layout note.
    """
    return deployment_at(*parse_url(url, **options), sent_token)


def deployment_at(
    address: Address, settings: Settings, sent_token: Callable[[], TaskToken | None] | None = None
) -> Deployment:
    """Return the open deployment, like `open_deployment`, for a parsed URL."""
    match address:
        case MemoryAddress():
            return _memory_deployment(address, settings)
        case HBaseAddress():
            return _hbase_deployment(address, settings, sent_token)
        case EmbeddedAddress():
            return _embedded_deployment(address, settings)


def _folder_upkeep(
    folder: Path, opened: Deployment, environment: Environment, session: FolderSession, note: NoteKeeper
) -> FolderUpkeep:
    """Start the thread that does the folder's upkeep, while no other process or other connection of this process does
    it."""
    from pyomid.database.upkeep.folder import FolderUpkeep
    from pyomid.folder import EmbeddedCatalog, EmbeddedStore, FolderOptions, FolderSession

    settings, store = opened.settings, opened.store
    assert isinstance(store, EmbeddedStore)

    def deployment() -> Deployment:
        options = FolderOptions(settings.max_transaction_age_seconds, settings.lease_seconds)
        catalog = EmbeddedCatalog(folder, create=False)
        return replace(
            opened,
            store=EmbeddedStore(folder, create=False),
            catalog=catalog,
            tso=FolderSession(environment, options),
            closers=(catalog.close,),
        )

    upkeep = FolderUpkeep(
        folder,
        deployment,
        store.record_count,
        share=settings.upkeep_share,
        keep_keys_s=86_400 * settings.run_id_days,
    )

    def timestamps() -> tuple[int, int]:
        newest_ts, watermark = session.newest_ts(), session.raise_watermark()
        note.renew(newest_ts)
        return newest_ts, watermark

    upkeep.start(timestamps, session.newest_commit)
    return upkeep


def tso_settings(settings: Settings, base: TsoSettings | None = None) -> TsoSettings:
    """Return `base` changed by those settings of a database that concern its TSO."""
    from pyomid.omid.oracle.settings import TsoSettings

    base = base or TsoSettings()
    return replace(
        base,
        conflict_map_entries=settings.conflict_map_entries,
        reported_ids_max=settings.reported_ids_max,
        max_transaction_age_s=settings.max_transaction_age_seconds,
        lease_seconds=settings.lease_seconds,
        commit_retry_s=max(settings.commit_retry_seconds, base.commit_retry_s),
        retention_s=duration_s(settings.retention) if settings.retention else None,
        accept_clock=settings.accept_clock,
    )


def _embedded_deployment(address: EmbeddedAddress, settings: Settings) -> Deployment:
    from pyomid.database.upkeep.folder import unchecked
    from pyomid.folder import (
        BranchTable,
        EmbeddedCatalog,
        EmbeddedStore,
        FolderOptions,
        FolderSession,
        FolderState,
    )
    from pyomid.folder.file_note import NoteKeeper, has_note, settle_note
    from pyomid.protocol.wall_clock import check_clock

    folder, map_bytes = _open_folder(address, settings), _map_bytes(settings)
    is_noted = has_note(folder)
    with ExitStack() as undo:
        store = EmbeddedStore(folder, map_bytes=map_bytes)
        undo.callback(store.close)
        environment = store.environment
        settle_note(folder, environment, is_noted=is_noted)
        catalog = EmbeddedCatalog(folder, map_bytes=map_bytes)
        undo.callback(catalog.close)
        options = FolderOptions(settings.max_transaction_age_seconds, settings.lease_seconds)
        session = FolderSession(environment, options)
        check_clock(time.time_ns(), session.newest_ts(), accept=settings.accept_clock)
        if settings.accept_clock:
            session.reach(time.time_ns())
        if settings.retention:
            session.keep_history(duration_s(settings.retention))
        undo.pop_all()

    def back_up(
        destination: str | os.PathLike[str], moment: BackupMoment, since: str | os.PathLike[str] | None
    ) -> Backup:
        from pyomid.folder import backup

        return backup.back_up(folder, destination, snapshot_ts=moment.snapshot_ts, since=since)

    def loop_session() -> LoopSession:
        from pyomid.folder.loop_session import LoopSession

        return LoopSession(session, environment)

    bare = Deployment(
        store, BranchTable(environment), FolderState(environment), catalog, session, settings, is_gone=store.is_gone
    )
    note = NoteKeeper(folder, environment, session.newest_ts())

    def close_note() -> None:
        with suppress(OmidError, FileNotFoundError):  # the folder may be gone
            note.close(session.newest_ts())

    session.unchecked = lambda: unchecked(folder, store.record_count())
    closers: tuple[Callable[[], None], ...] = (close_note, catalog.close)
    if settings.upkeep_share:
        upkeep = _folder_upkeep(folder, bare, environment, session, note)
        closers = (close_note, upkeep.stop, catalog.close)  # `close` calls the last one first
    return replace(
        bare,
        closers=closers,
        loop_session=loop_session,
        back_up=back_up,
    )


def _map_bytes(settings: Settings) -> int:
    return int(settings.map_size_gib * (1 << 30))


_memory_databases: Final[dict[str, Deployment]] = {}
_memory_lock: Final = threading.Lock()


def _memory_deployment(address: MemoryAddress, settings: Settings) -> Deployment:
    """Return the shared deployment of this name. Its stores and TSO live as long as the process, and its TSO has the
    settings of the first connection.
    """
    with _memory_lock:
        shared = _memory_databases.get(address.name)
        if shared is None:
            shared = _memory_databases[address.name] = _new_memory_deployment(settings)
    first, wanted = tso_settings(shared.settings), tso_settings(settings)
    if ignored := [each.name for each in fields(first) if getattr(first, each.name) != getattr(wanted, each.name)]:
        log.warning(
            "omid-memory:%s is already open in this process, so the TSO options (%s) keep the values of its first "
            "connection; set these options at the first connection, or choose another name",
            address.name,
            ", ".join(ignored),
        )
    return replace(shared, settings=settings)


def _new_memory_deployment(settings: Settings) -> Deployment:
    from pyomid.omid.memory import MemoryCatalog, MemoryCommitTable, MemoryLeaderState, MemoryStore
    from pyomid.omid.tso.local import LocalTso
    from pyomid.omid.tso.store_calls import TsoStores

    class SharedTso(LocalTso):
        """A TSO that outlives its connections."""

        def close(self) -> None:
            pass

    store, leader_state, catalog = MemoryStore(), MemoryLeaderState(), MemoryCatalog()
    commit_table = MemoryCommitTable()
    tso = SharedTso(
        TsoStores(commit_table, leader_state, catalog),
        tso_settings(settings),
        clock=boot_clock,
        locks=(store.lock, commit_table.lock, leader_state.lock, catalog.lock),
    )
    return Deployment(store, commit_table, leader_state, catalog, tso, settings)


def _credentials(settings: Settings) -> tuple[ssl.SSLContext | None, bytes]:
    """Return the TLS context for a cluster's TSO, and the token to send. Bad options raise `Misuse` before anything is
    connected."""
    from pyomid.omid.client.blocking import read_token
    from pyomid.tls import client_context

    tls = client_context("tls", settings.tls_ca, settings.tls_cert, settings.tls_key)
    return tls, read_token(settings.token_file) if settings.token_file else b""


class _LeaderConnector:
    """Connects a session to the leading TSO of a cluster, whose certificate must be that of the announced host."""

    def __init__(self, zookeeper: ZooKeeper, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        self._zookeeper = zookeeper
        self._tls = tls
        self._timeout_s = timeout_s
        self._connected_to: AnnouncedTso | None = None

    def __call__(self) -> socket.socket:
        return self._connect(self._tls)[0]

    def for_loop(self) -> ConnectedSocket:
        """Connect without TLS, which the event loop starts later."""
        from pyomid.omid.client.async_session import ConnectedSocket

        sock, tso = self._connect(None)
        return ConnectedSocket(sock, self._tls, tso.host)

    def _connect(self, tls: ssl.SSLContext | None) -> tuple[socket.socket, AnnouncedTso]:
        from pyomid.omid.hbase.coordination import find_tso
        from pyomid.tls import tcp_connector

        self._connected_to = tso = find_tso(self._zookeeper)
        return tcp_connector(tso.address, tls=tls, timeout_s=self._timeout_s)(), tso

    def has_moved(self) -> bool:
        """Whether another TSO leads now; for `TsoSession`."""
        from pyomid.omid.hbase.coordination import has_other_leader

        return self._connected_to is not None and has_other_leader(self._zookeeper, self._connected_to)


def _hbase_deployment(
    address: HBaseAddress, settings: Settings, sent_token: Callable[[], TaskToken | None] | None
) -> Deployment:
    """Open stores over HBase's native RPC; the TSO is found through the cluster's ZooKeeper."""
    from pyomid.omid.client.blocking import SharedTableSession
    from pyomid.omid.client.request_retry import KnownDatabase
    from pyomid.omid.hbase.coordination import find_tso
    from pyomid.omid.hbase.deployment import check_database, hbase_options, open_hbase, task_tokens

    if settings.retention:
        raise Misuse(
            "over HBase, option retention has an effect only in the TSO's URL (pyomid tso --store)",
            option="retention",
        )
    tls, token = _credentials(settings)
    retry_s, chosen = settings.store_retry_seconds, replace(hbase_options(settings), token=sent_token)
    database = open_hbase(address.quorum, address.znode, deadline_s=retry_s, options=chosen)
    try:
        check_database(database.cluster)
        known = KnownDatabase(database.leader_state.id_if_known())  # so a TSO of another database is refused
    except BaseException:
        database.close()
        raise
    options: SessionOptions = {
        "request_s": settings.request_seconds,
        "retry_s": settings.commit_retry_seconds,
        "token": token,
        "announced_epoch": lambda: find_tso(database.zookeeper).epoch,
    }

    def loop_session() -> AsyncTsoSession:
        from pyomid.daemon_threads import in_daemon_thread
        from pyomid.omid.client.async_session import AsyncTsoSession

        connector = _LeaderConnector(database.zookeeper, tls, settings.request_seconds)
        of_loop: SessionOptions = {**options, "has_moved": connector.has_moved, "known": session.known}
        return AsyncTsoSession(lambda: in_daemon_thread(connector.for_loop), **of_loop)

    def back_up(name: str | os.PathLike[str], moment: BackupMoment, since: str | os.PathLike[str] | None) -> Backup:
        from pyomid.omid.hbase.backup import HBaseBackup

        if since is not None:
            raise Misuse(
                "a backup over HBase cannot be incremental, because HBase's snapshots already share unchanged files; "
                "omit the argument `since`"
            )
        return HBaseBackup(database.cluster, database.leader_state, database.catalog).take(name, moment)

    connector = _LeaderConnector(database.zookeeper, tls, settings.request_seconds)
    session = SharedTableSession(
        connector, database.commit_table, clock=boot_clock, has_moved=connector.has_moved, known=known, **options
    )
    return Deployment(
        database.store,
        database.commit_table,
        database.leader_state,
        database.catalog,
        session,
        settings,
        closers=(database.close,),
        foreign=database.store,
        loop_session=loop_session,
        back_up=back_up,
        task_token=task_tokens(database.cluster, chosen),
    )
