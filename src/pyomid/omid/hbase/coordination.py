"""Leader election in a cluster, and the leader's address. The TSO that holds the lease in Omid's znodes is the leader.
These znodes are below `/omid`, or below another namespace (option `zkNamespace`).

    /omid/tso-lease      its *version* is the lease: the leader renews it by a compare-and-set write
    /omid/current-tso    host:port#epoch, written by the leader once it may serve

A standby takes the lease when it has seen the same version for a whole period. Clocks need not show the same time, but
must run at the same rate (T4): the leader counts its period from before the write that renews the lease, the standby
from after it saw that write.

    leader    t0 ──set(v 7)────────────────── t0 + period: stops serving
    standby           └ sees v 7 at t1 > t0 ────────────── t1 + period: set(v 8), leads

The lease prevents two leaders at a time as long as clocks run at the same rate; the leader state prevents them in every
case. A leader that shuts down empties the lease znode, and a standby takes the lease at once. Java TSOs use the same
znodes and rules, but not the leader state: next to a Java TSO, only the clocks prevent two leaders (decision 0037).

Background upkeep has its own election (`UpkeepTurn`). Of all processes that run one kind of upkeep, the owner of an
ephemeral znode does the work, and the others stand by.

    /omid/pyomid-upkeep/NAME     exists while its owner's session lives; then another process creates it

This election avoids duplicate work; it is not a fence. Any number of compactors and sanitizers may work at a time
(protocol.md, "Compaction and sanitizing"). An owner that does not notice the loss of its znode wastes at most the work
on one region.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError

from pyomid.errors import Corruption, Deposed, OmidError, Unavailable
from pyomid.omid.hbase.zookeeper import ZooKeeper
from pyomid.ports import Clock

log = logging.getLogger(__name__)

LEASE_S: Final = 10.0
"""The default of Apache Omid."""

_CHECKS_PER_PERIOD: Final = 25
_RENEWALS_PER_PERIOD: Final = 4
"""Java renews the lease a quarter of a period before its end. At this higher rate a lost packet does no harm."""
_CHECK_S_MAX: Final = 0.25
"""The timeout of a client's check for another leader. The client reads no replies meanwhile."""
_DRIFT: Final = 0.98
"""The part of its period that a leader uses. The remaining 2 % far exceed the drift between two clocks."""


class LeaderLease:
    """One candidate for the leadership. Clients connect to `address` (host:port). `clock` counts the time while the
    machine is suspended, too."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        address: str,
        *,
        clock: Clock,
        period_s: float = LEASE_S,
    ) -> None:
        self.period_s = period_s
        self._zookeeper = zookeeper
        self._address = address
        self._clock = clock
        self._lease_path = f"{zookeeper.namespace}/tso-lease"
        self._address_path = f"{zookeeper.namespace}/current-tso"
        self._name = f"{socket.gethostname()}:{os.getpid()}:{os.urandom(4).hex()}".encode()
        self._version = -1
        self._until_s = 0.0
        self._ended = threading.Event()
        self._keeper: threading.Thread | None = None

    def acquire(self, stop: threading.Event) -> float | None:
        """Wait until this process is the leader. Returns the time (of `clock`) until which it leads without a renewal;
        None after `stop`.

        Retries while ZooKeeper does not reply. May be called again after `release`.
        """
        self._version, self._ended, self._keeper = -1, threading.Event(), None
        seen, since_s = -2, 0.0
        while not stop.is_set():
            began_s = self._clock()
            try:
                version, is_free = self._read_lease()
                if version != seen:
                    seen, since_s = version, self._clock()
                if (is_free or began_s - since_s >= self.period_s) and self._set(self._name, version):
                    self._until_s = began_s + self.period_s * _DRIFT
                    return self._until_s
            except (KazooException, Unavailable) as error:
                log.warning("waiting for ZooKeeper: %r", error)
                seen = -2
            stop.wait(self.period_s / _CHECKS_PER_PERIOD)
        return None

    def keep(self, renewed: Callable[[float], object], lost: Callable[[str], object]) -> None:
        """Start a thread that renews the lease. It calls `renewed(until_s)` after each renewal, and `lost(why)` once.

        While ZooKeeper does not reply, it calls neither: the lease then ends at the last `until_s`.
        """
        arguments = (self._ended, renewed, lost)
        self._keeper = threading.Thread(target=self._keep, args=arguments, name="tso-lease", daemon=True)
        self._keeper.start()

    def announce(self, epoch: int) -> None:
        """Publish this TSO's address; on return clients find it. Raises `Deposed` if a later epoch is already
        announced."""
        content = f"{self._address}#{epoch}".encode()
        ask = self._zookeeper.ask
        try:
            ask("ensure_path", self._address_path)
            found, stat = ask("get", self._address_path)
            if found and parse_address(found)[2] > epoch:
                raise Deposed(
                    f"the znode {self._address_path} announces {found.decode(errors='replace')}, which is later than "
                    f"this TSO's epoch, {epoch}: another TSO leads. If the other TSO belongs to a former database "
                    f"that was dropped and created again, stop that TSO, run `delete {self._address_path}` in "
                    "ZooKeeper's zkCli, and restart this TSO",
                    epoch=epoch,
                )
            ask("set", self._address_path, content, version=stat.version)
        except BadVersionError as error:
            raise Deposed(f"another TSO announced itself in {self._address_path}", epoch=epoch) from error
        except KazooException as error:
            raise Unavailable(f"ZooKeeper did not store the TSO's address: {error!r}") from error

    def release(self) -> None:
        """Stop the renewals and give up the lease, so that a standby takes over at once. Call it after the TSO has
        stopped serving."""
        self._ended.set()
        if self._keeper is not None:
            self._keeper.join(timeout=self.period_s)
        if self._version >= 0:
            try:
                self._set(b"", self._version)
            except (KazooException, Unavailable):
                log.warning(
                    "could not release the lease of the leading TSO; the lease expires within %g s", self.period_s
                )
        self._zookeeper.close()

    def _keep(self, ended: threading.Event, renewed: Callable[[float], object], lost: Callable[[str], object]) -> None:
        while not ended.wait(self.period_s / _RENEWALS_PER_PERIOD):
            began_s = self._clock()
            if began_s >= self._until_s:
                lost(f"the lease expired {began_s - self._until_s:.3f} s ago")
                return
            try:
                if not self._set(self._name, self._version):
                    lost("another TSO took the lease")
                    return
            except (KazooException, Unavailable) as error:
                log.warning("could not renew the lease of the leading TSO: %r", error)
                continue
            self._until_s = began_s + self.period_s * _DRIFT
            renewed(self._until_s)

    def _read_lease(self) -> tuple[int, bool]:
        """Return the lease's version (-1 if there is none), and whether the lease is free."""
        try:
            content, stat = self._zookeeper.ask("get", self._lease_path)
        except NoNodeError:
            return -1, True
        return stat.version, content == b"" and stat.version > 0

    def _set(self, content: bytes, version: int) -> bool:
        """Compare and set the lease. Returns True even if only an earlier attempt of this process succeeded, whose
        reply was lost."""
        ask = self._zookeeper.ask
        try:
            if version < 0:
                ask("create", self._lease_path, content, makepath=True)
                self._version = 0
            else:
                self._version = ask("set", self._lease_path, content, version=version).version
        except (BadVersionError, NodeExistsError):
            found, stat = ask("get", self._lease_path)
            if found != self._name or stat.version != version + 1:
                return False
            self._version = stat.version
        except NoNodeError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class AnnouncedTso:
    """The address and epoch of a TSO, as announced in ZooKeeper."""

    host: str
    port: int
    epoch: int

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


def find_tso(zookeeper: ZooKeeper) -> AnnouncedTso:
    """Return the TSO that clients should use now. Raises `Unavailable` if no TSO has announced itself."""
    path = f"{zookeeper.namespace}/current-tso"
    try:
        content, _ = zookeeper.session().retry(zookeeper.ask, "get", path)
    except NoNodeError:
        content = b""
    except KazooException as error:
        raise Unavailable(f"ZooKeeper {zookeeper.quorum} did not reply to a request for {path}: {error!r}") from error
    if not content:
        raise Unavailable(
            f"no TSO has announced itself in {path} of ZooKeeper {zookeeper.quorum}: start one with `pyomid tso`"
        )
    return AnnouncedTso(*parse_address(content))


def has_other_leader(zookeeper: ZooKeeper, known: AnnouncedTso) -> bool:
    """Return whether ZooKeeper announces another TSO than `known`. Returns False if ZooKeeper does not reply at
    once."""
    try:
        content, _ = zookeeper.ask("get", f"{zookeeper.namespace}/current-tso", answer_s=_CHECK_S_MAX)
        return bool(content) and AnnouncedTso(*parse_address(content)) != known
    except (KazooException, OmidError):
        return False


def parse_address(content: bytes) -> tuple[str, int, int]:
    """Return host, port and epoch from `host:port#epoch`."""
    address, hash_sign, epoch = content.decode(errors="replace").partition("#")
    host, colon, port = address.rpartition(":")
    if not (hash_sign and colon and port.isdecimal() and epoch.isdecimal()):
        raise Corruption(f"the znode current-tso does not hold host:port#epoch: {content[:80]!r}")
    return host, int(port), int(epoch)


OWNER_ZNODE: Final = "pyomid-database"
"""This znode is below the namespace. Its content is a database's id."""


def claim_namespace(zookeeper: ZooKeeper, database_id: bytes) -> bytes:
    """Return the id of the database that the namespace belongs to. If it belonged to none, it now belongs to this
    one."""
    path = f"{zookeeper.namespace}/{OWNER_ZNODE}"
    try:
        with suppress(NodeExistsError):
            zookeeper.ask("create", path, database_id.hex().encode(), makepath=True)
        return bytes.fromhex(zookeeper.ask("get", path)[0].decode())
    except KazooException as error:
        raise Unavailable(f"ZooKeeper {zookeeper.quorum} did not reply to a request for {path}: {error!r}") from error
    except ValueError as error:
        raise Corruption(f"the znode {path} does not hold a database's id") from error


_CHECK_INTERVAL_S: Final = 1.0


class UpkeepTurn:
    """One process's candidacy for the upkeep `name`. The object owns the session `zookeeper`, and `release` ends it."""

    def __init__(self, zookeeper: ZooKeeper, name: str) -> None:
        self._zookeeper = zookeeper
        self._path = f"{zookeeper.namespace}/pyomid-upkeep/{name}"
        self._name = f"{socket.gethostname()}:{os.getpid()}".encode()

    def acquire(self, stop: threading.Event) -> bool:
        """Wait until this process is elected. Returns False after `stop`. Retries while ZooKeeper does not reply."""
        logged = b""
        while not stop.is_set():
            try:
                owner = self._take()
                if owner is None:
                    log.info("this process has taken over the upkeep")
                    return True
                if owner != logged:
                    log.info("standing by: %s does the upkeep", owner.decode(errors="replace"))
                    logged = owner
            except (KazooException, Unavailable) as error:
                if isinstance(error, Unavailable) and not error.values.get("may_pass", True):
                    raise
                log.warning("waiting for ZooKeeper: %s", _text(error))
            stop.wait(_CHECK_INTERVAL_S)
        return False

    def is_held(self) -> bool:
        """Return whether this process is still elected. Returns False if ZooKeeper does not reply."""
        try:
            stat = self._zookeeper.ask("exists", self._path)
            return stat is not None and stat.ephemeralOwner == self._session_id()
        except (KazooException, Unavailable) as error:
            log.warning("cannot ask ZooKeeper which process does the upkeep: %s", _text(error))
            return False

    def release(self) -> None:
        """End the session: ZooKeeper deletes the znode, and a standby takes over at once. If ZooKeeper does not reply,
        it deletes the znode when the session times out. (If this session had expired, a delete by name could remove
        another process's znode.)"""
        try:
            self._zookeeper.close()
        except (KazooException, Unavailable) as error:
            log.warning(
                "could not close the ZooKeeper session; another process takes over the upkeep when the session times "
                "out: %s",
                _text(error),
            )

    def _take(self) -> bytes | None:
        """Try to create the znode. Returns None if this process owns it, even by an attempt whose reply was lost;
        otherwise the owner's name."""
        ask = self._zookeeper.ask
        while True:
            try:
                ask("create", self._path, self._name, ephemeral=True, makepath=True)
                return None
            except NodeExistsError:
                pass
            try:
                owner, stat = ask("get", self._path)
            except NoNodeError:  # the owner's session ended meanwhile
                continue
            return None if stat.ephemeralOwner == self._session_id() else bytes(owner)

    def _session_id(self) -> int:
        identity = self._zookeeper.session().client_id
        return int(identity[0]) if identity else -1


def _text(error: Exception) -> str:
    """Return the message of a kazoo error, or its class name if it has no message."""
    return str(error) or type(error).__name__
