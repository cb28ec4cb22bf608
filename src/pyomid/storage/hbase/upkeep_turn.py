"""Election of the process that does upkeep: of several candidates, the one that owns the ephemeral znode works.

    /omid/pyomid-upkeep/NAME     exists while its owner's session lives; then the next candidate takes over

The election avoids duplicate work; it is not a fence. Any number of compactors and sanitizers may work at a time
(protocol.md, "Compaction and sanitizing"), so an owner that lost its znode unnoticed wastes a region's work at most.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from typing import Final

from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError

from pyomid.errors import Unavailable
from pyomid.storage.hbase.coordination import NAMESPACE
from pyomid.storage.hbase.zookeeper import ZooKeeper

log = logging.getLogger(__name__)

_CHECK_INTERVAL_S: Final = 1.0


class UpkeepTurn:
    """One candidate for the upkeep `name`. It owns `zookeeper`; `release` ends that session."""

    def __init__(self, zookeeper: ZooKeeper, name: str, *, namespace: str = NAMESPACE) -> None:
        self._zookeeper = zookeeper
        self._path = f"{namespace}/pyomid-upkeep/{name}"
        self._name = f"{socket.gethostname()}:{os.getpid()}".encode()

    def acquire(self, stop: threading.Event) -> bool:
        """Wait until this process is elected; False after `stop`. Retries while ZooKeeper does not answer."""
        logged = b""
        while not stop.is_set():
            try:
                owner = self._take()
                if owner is None:
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
        """Return whether this process is still elected. False also if ZooKeeper does not answer."""
        try:
            stat = self._zookeeper.ask("exists", self._path)
            return stat is not None and stat.ephemeralOwner == self._session_id()
        except (KazooException, Unavailable) as error:
            log.warning("cannot ask ZooKeeper which process does the upkeep: %s", _text(error))
            return False

    def release(self) -> None:
        """End the session, and the election with it: a process that stands by takes over at once. (A delete by name
        could remove another process's znode, if this session had expired.) If ZooKeeper does not answer, the znode goes
        when the session times out."""
        try:
            self._zookeeper.close()
        except (KazooException, Unavailable) as error:
            log.warning("could not close the ZooKeeper session; upkeep passes on when it times out: %s", _text(error))

    def _take(self) -> bytes | None:
        """Return None if this process is elected (perhaps by an attempt whose reply was lost), otherwise the owner."""
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
    """Return the message of a kazoo error, which often has only a name."""
    return str(error) or type(error).__name__
