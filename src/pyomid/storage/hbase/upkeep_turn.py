"""Whose turn upkeep is: of several processes that would do the same, the one whose ephemeral znode is there.

    /omid/pyomid-upkeep/NAME     its owner works; it goes with the owner's session, and the next one takes over

It is thrift, no fence: compactors and sanitizers of any number may work at a time (protocol.md, "Compaction and
sanitizing"). So a turn that was lost unnoticed costs a region's work, and nothing else.
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

_LOOK_S: Final = 1.0


class UpkeepTurn:
    """The turn called `name`, for one candidate. It owns `zookeeper`, whose session `release` ends."""

    def __init__(self, zookeeper: ZooKeeper, name: str, *, namespace: str = NAMESPACE) -> None:
        self._zookeeper = zookeeper
        self._path = f"{namespace}/pyomid-upkeep/{name}"
        self._name = f"{socket.gethostname()}:{os.getpid()}".encode()

    def acquire(self, stop: threading.Event) -> bool:
        """Waits until it is this process's turn; False after `stop`. It waits for a ZooKeeper that does not answer."""
        told = b""
        while not stop.is_set():
            try:
                owner = self._take()
                if owner is None:
                    return True
                if owner != told:
                    log.info("stands by: it is the turn of %s", owner.decode(errors="replace"))
                    told = owner
            except (KazooException, Unavailable) as error:
                if isinstance(error, Unavailable) and not error.values.get("may_pass", True):
                    raise
                log.warning("waiting for ZooKeeper: %s", _text(error))
            stop.wait(_LOOK_S)
        return False

    def is_held(self) -> bool:
        """Whether it still is. False also where ZooKeeper does not tell."""
        try:
            stat = self._zookeeper.ask("exists", self._path)
            return stat is not None and stat.ephemeralOwner == self._session_id()
        except (KazooException, Unavailable) as error:
            log.warning("ZooKeeper does not say whose turn it is: %s", _text(error))
            return False

    def release(self) -> None:
        """Ends the session, and the turn with it if it is held: whoever stands by goes on at once. A delete by name
        could meet the znode of another process, where this session ended meanwhile. Where ZooKeeper does not answer,
        the turn ends with the session's time."""
        try:
            self._zookeeper.close()
        except (KazooException, Unavailable) as error:
            log.warning("the turn was not given back: %s", _text(error))

    def _take(self) -> bytes | None:
        """None: it is ours, perhaps by an earlier attempt whose answer was lost. Else whose it is."""
        ask = self._zookeeper.ask
        while True:
            try:
                ask("create", self._path, self._name, ephemeral=True, makepath=True)
                return None
            except NodeExistsError:
                pass
            try:
                owner, stat = ask("get", self._path)
            except NoNodeError:  # it went meanwhile
                continue
            return None if stat.ephemeralOwner == self._session_id() else bytes(owner)

    def _session_id(self) -> int:
        identity = self._zookeeper.session().client_id
        return int(identity[0]) if identity else -1


def _text(error: Exception) -> str:
    """kazoo's errors have a name, and often nothing else."""
    return str(error) or type(error).__name__
