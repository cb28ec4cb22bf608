"""The cluster's ZooKeeper: where HBase says who serves what, and where Omid's own znodes live."""

from __future__ import annotations

import logging
import ssl
import threading
import time
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.retry import KazooRetry

from pyomid.errors import Misuse, Unavailable
from pyomid.storage.checks import ProcessGuard
from pyomid.storage.hbase.security.kazoo_sasl import SaslConnection
from pyomid.storage.hbase.security.kerberos import Kerberos
from pyomid.tls import Refusal, look

_CONNECT_S_MAX: Final = 10.0

_ANSWER_S_MAX: Final = 10.0
"""kazoo keeps commands while it looks for a server, without a limit of time; callers here wait no longer than this."""

_TELL_AFTER_S: Final = 2.0
"""A longer wait is logged."""

_TLS: Final = "zookeeperTls"

log = logging.getLogger(__name__)

_kazoo_log: Final = logging.getLogger(f"{__name__}.kazoo")
_kazoo_log.setLevel(logging.ERROR)
"""kazoo logs every connection that is made or closed. What matters is raised, or logged by the caller."""


class _TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Connects by our own TLS: kazoo's trusts the system's authorities too, and asks no certificate whom it names."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        super().__init__()
        self._tls = tls

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, timeout: float | None = None, **_: Any
    ) -> ssl.SSLSocket:
        plain = super().create_connection(address, timeout=timeout)
        try:
            return self._tls.wrap_socket(plain, server_hostname=hostname or address[0])
        except BaseException:
            plain.close()
            raise


class ZooKeeper:
    """One session, opened at first use and shared by threads. `znode` is HBase's root, `/hbase` by default; `sasl` says
    who the client is, and by what principal the servers are known."""

    def __init__(
        self,
        quorum: str,
        znode: str = "/hbase",
        *,
        connect_s_max: float = _CONNECT_S_MAX,
        session_s: float = 10.0,
        sasl: tuple[Kerberos, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.quorum = quorum
        self.znode = znode.rstrip("/") or "/hbase"
        self._connect_s_max = connect_s_max
        self._session_s = session_s
        self._sasl = sasl
        self._tls = tls
        self._connection: SaslConnection | None = None
        self._client: KazooClient | None = None
        self._opening = threading.Lock()
        self._guard = ProcessGuard("ZooKeeper")

    def read_hbase(self, name: str) -> bytes:
        """The content of HBase's znode `name`; `Unavailable` if HBase is not up below this root."""
        path = f"{self.znode}/{name}"
        client = self.session()
        try:
            try:
                content: bytes = client.retry(self.ask, "get", path)[0]
                return content
            except NoNodeError:
                roots = [] if self.ask("exists", self.znode) else self._roots()
        except (KazooException, KazooTimeoutError) as error:
            why = self._refusal() or repr(error)
            raise Unavailable(f"ZooKeeper {self.quorum} did not answer for {path}: {why}") from error
        if roots:
            raise Misuse(
                f"ZooKeeper {self.quorum} has no znode {self.znode}: HBase keeps itself below another root "
                f"(zookeeper.znode.parent): {', '.join(roots)}",
                znode=self.znode,
            )
        raise Unavailable(f"ZooKeeper {self.quorum} has no {path}: HBase is down, starting, or never started")

    def ask(self, command: str, *arguments: Any, answer_s: float = _ANSWER_S_MAX, **options: Any) -> Any:
        """Runs kazoo's `command`. `Unavailable` after `answer_s` without an answer; a write may have taken place. Other
        errors are kazoo's own.
        """
        asked = getattr(self.session(), f"{command}_async")(*arguments, **options)
        try:
            return asked.get(timeout=answer_s)
        except KazooTimeoutError as error:
            raise Unavailable(
                f"ZooKeeper {self.quorum} did not answer {command} {arguments[0]} within {answer_s:g} s"
                + (f": {refusal}" if (refusal := self._refusal()) else "")
            ) from error

    def session(self) -> KazooClient:
        """kazoo's client, connected; `Unavailable` if no server of the quorum answers."""
        self._guard.check()
        with self._opening:
            if self._client is None:
                self._client = self._open()
            return self._client

    def close(self) -> None:
        with self._opening:
            client, self._client = self._client, None
        if client is not None:
            client.stop()
            client.close()

    def _open(self) -> KazooClient:
        client = KazooClient(
            hosts=self.quorum,
            timeout=self._session_s,
            logger=_kazoo_log,
            handler=None if self._tls is None else _TlsHandler(self._tls),
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=1.0),
            command_retry=KazooRetry(max_tries=5, delay=0.05, max_delay=0.5),
        )
        if self._sasl is not None:
            client._connection = self._connection = SaslConnection(client, *self._sasl)
        try:
            ends_s = time.monotonic() + self._connect_s_max
            connected, advice = client.start_async(), "check the address"
            if not connected.wait(min(_TELL_AFTER_S, self._connect_s_max)):
                advice = self._advice(client)
                log.warning("no ZooKeeper server of %s answers: waits; %s", self.quorum, advice)
                connected.wait(max(0.0, ends_s - time.monotonic()))
            if self._connection is not None:
                self._connection.has_tried.wait(max(0.0, ends_s - time.monotonic()))
                if refusal := self._refusal():
                    raise Unavailable(f"ZooKeeper {self.quorum}: {refusal}", may_pass=self._connection.may_pass)
            if client.connected:
                return client
            raise Unavailable(
                f"no ZooKeeper server of {self.quorum} answered within {self._connect_s_max:g} s: {advice}"
            )
        except BaseException:
            client.stop()
            client.close()
            raise

    def _advice(self, client: KazooClient) -> str:
        """Why no server of the quorum gives a session. `Unavailable` where one of them does not trust us, or we it."""
        found = [look(place, self._tls, f"the ZooKeeper server {place[0]}:{place[1]}", _TLS) for place in client.hosts]
        if (refused := next((each for each in found if isinstance(each, Refusal)), None)) is not None:
            raise Unavailable(str(refused), may_pass=False)
        return next((str(each) for each in found if each is not None), "check the address")

    def _refusal(self) -> str:
        """Why the last authentication failed, if it did."""
        return self._connection.failure if self._connection is not None else ""

    def _roots(self) -> list[str]:
        """Where an HBase keeps itself: its id lies there for good."""
        found = (f"/{name}" for name in self.ask("get_children", "/"))
        return sorted(name for name in found if self.ask("exists", f"{name}/hbaseid"))
