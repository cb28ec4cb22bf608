"""The cluster's ZooKeeper. It holds the addresses of HBase's servers, and Omid's own znodes."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from contextlib import suppress
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped, KazooException, NoNodeError, ZookeeperError
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import SASL
from kazoo.retry import KazooRetry

from pyomid.checks import ProcessGuard
from pyomid.errors import Corruption, Misuse, Unavailable
from pyomid.omid.hbase.kerberos import Kerberos, KerberosContext, KerberosFailed
from pyomid.omid.hbase.sasl import Protection, SaslRefused, exchange_steps
from pyomid.system import block_sigpipe, occupy_standard
from pyomid.tls import Refusal, probe

_CONNECT_S_MAX: Final = 10.0

_ANSWER_S_MAX: Final = 10.0
"""The timeout of a command. While kazoo has no server, it queues commands without a timeout."""

_LOG_AFTER_S: Final = 2.0
"""An attempt to connect that takes longer is logged."""

_PROBE_S_MAX: Final = 1.5
"""The time that a server which opens no session may take to close a connection on which nothing was sent."""

_TLS: Final = "zookeeperTls"

log = logging.getLogger(__name__)

_kazoo_log: Final = logging.getLogger(f"{__name__}.kazoo")
_kazoo_log.setLevel(logging.ERROR)
"""kazoo logs every connection and disconnection. Relevant errors are raised here, or logged by the caller."""


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """Connects in kazoo's own thread, which also sends; the thread blocks SIGPIPE. The connection uses our own TLS
    context, because kazoo's also trusts the system's authorities, and does not check host names."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self._tls = tls

    def start(self) -> None:
        occupy_standard()
        super().start()

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, timeout: float | None = None, **_: Any
    ) -> socket.socket:
        occupy_standard()
        block_sigpipe()
        sock: socket.socket = super().create_connection(address, timeout=timeout)
        if self._tls is None:
            return sock
        try:
            return self._tls.wrap_socket(sock, server_hostname=hostname or address[0])
        except BaseException:
            sock.close()
            raise


class _SaslConnection(ConnectionHandler):  # type: ignore[misc]
    """SASL on the connection of a client that is not yet started; kazoo's own SASL needs two unmaintained libraries
    (decision 0071). kazoo gives up for good when authentication fails. Here a failure counts as a lost connection, so
    that a service survives an outage of its KDC. `principal` is ZooKeeper's, with _HOST for the host."""

    def __init__(self, client: KazooClient, kerberos: Kerberos, principal: str) -> None:
        # If these options are not None, kazoo calls `_authenticate_with_sasl` on each connection.
        super().__init__(client, client._conn_retry.copy(), logger=client.logger, sasl_options={})
        self._kerberos = kerberos
        self._principal = principal
        self.has_tried = threading.Event()
        """Set once authentication has succeeded or failed."""
        self.failure = ""
        """Why the last authentication failed; empty if it succeeded."""
        self.may_pass = True
        """Whether a retry may succeed."""

    def _authenticate_with_sasl(self, host: str, timeout: float) -> None:
        try:
            self._exchange(self._kerberos.context(self._principal, host), timeout)
            self.failure = ""
        except KerberosFailed as error:
            self._fail(str(error), may_pass=error.may_pass)
        except ConnectionDropped:
            self._fail(f"ZooKeeper {host} closed the connection during SASL: see its log")
        except OSError as error:
            self._fail(f"the connection to ZooKeeper {host} ended during SASL: {error}")
        except (SaslRefused, Corruption, ZookeeperError) as error:
            self._fail(f"SASL with ZooKeeper {host} failed: {str(error) or repr(error)}", may_pass=False)
        finally:
            self.has_tried.set()

    def _exchange(self, context: KerberosContext, timeout: float) -> None:
        exchange = exchange_steps(context, Protection.AUTHENTICATION)
        token, rounds = next(exchange), 0
        try:
            while True:
                rounds += 1
                answer = self._ask(token, rounds, timeout)
                if answer is None:
                    raise SaslRefused("it has no SASL: set the option zookeeperPrincipal=none")
                token = exchange.send(answer)
        except StopIteration as end:
            self._ask(end.value.token, rounds + 1, timeout)

    def _ask(self, token: bytes, xid: int, timeout: float) -> bytes | None:
        """Send one token. Returns the server's answer, or None if the server sends none."""
        self._submit(SASL(token), timeout, xid)
        header, buffer, offset = self._read_header(timeout)
        if header.err:
            raise SaslRefused(f"it refuses this client (error {header.err}): see its log")
        answer, _ = SASL.deserialize(buffer, offset)
        return None if answer is None else bytes(answer)

    def _fail(self, message: str, *, may_pass: bool = True) -> None:
        if message != self.failure:
            log.warning("authentication to ZooKeeper failed: %s", message)
        self.failure, self.may_pass = message, may_pass
        raise ConnectionDropped(message)


class ZooKeeper:
    """One session, which is opened at first use and shared by threads. `znode` is HBase's root, `/hbase` by default.
    `sasl` is the client's Kerberos identity and the servers' principal. Omid's znodes are below `namespace`."""

    def __init__(
        self,
        quorum: str,
        znode: str = "/hbase",
        *,
        connect_s_max: float = _CONNECT_S_MAX,
        session_s: float = 10.0,
        sasl: tuple[Kerberos, str] | None = None,
        tls: ssl.SSLContext | None = None,
        namespace: str = "omid",
    ) -> None:
        self.quorum = quorum
        self.namespace = f"/{namespace}"
        self.znode = znode.rstrip("/") or "/hbase"
        self._connect_s_max = connect_s_max
        self._session_s = session_s
        self._sasl = sasl
        self._tls = tls
        self._connection: _SaslConnection | None = None
        self._client: KazooClient | None = None
        self._opening = threading.Lock()
        self._guard = ProcessGuard("ZooKeeper")

    def read_hbase(self, name: str) -> bytes:
        """Return the content of HBase's znode `name`. Raises `Unavailable` if HBase is not running below this root."""
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
            raise Unavailable(f"ZooKeeper {self.quorum} did not reply to a request for {path}: {why}") from error
        if roots:
            raise Misuse(
                f"ZooKeeper {self.quorum} has no znode {self.znode}; HBase's root (zookeeper.znode.parent) is "
                f"{' or '.join(roots)}: put this root into the URL",
                znode=self.znode,
            )
        raise Unavailable(f"ZooKeeper {self.quorum} has no {path}: HBase is down, starting, or never started")

    def ask(self, command: str, *arguments: Any, answer_s: float = _ANSWER_S_MAX, **options: Any) -> Any:
        """Run kazoo's `command` and return its result. Raises `Unavailable` if no reply arrives within `answer_s`; a
        write may then have taken effect. Other errors are kazoo's own."""
        asked = getattr(self.session(), f"{command}_async")(*arguments, **options)
        try:
            return asked.get(timeout=answer_s)
        except KazooTimeoutError as error:
            raise Unavailable(
                f"ZooKeeper {self.quorum} did not reply to {command} {arguments[0]} within {answer_s:g} s"
                + (f": {refusal}" if (refusal := self._refusal()) else "")
            ) from error

    def session(self) -> KazooClient:
        """Return kazoo's client, connected. Raises `Unavailable` if no server of the quorum answers."""
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
            handler=_Handler(self._tls),
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=1.0),
            command_retry=KazooRetry(max_tries=5, delay=0.05, max_delay=0.5),
        )
        if self._sasl is not None:
            client._connection = self._connection = _SaslConnection(client, *self._sasl)
        try:
            ends_s = time.monotonic() + self._connect_s_max
            connected = client.start_async()
            if not connected.wait(min(_LOG_AFTER_S, self._connect_s_max)):
                advice = self._advice(client)
                log.warning("no ZooKeeper server of %s has answered yet; still trying: %s", self.quorum, advice)
                connected.wait(max(0.0, ends_s - time.monotonic()))
            if self._connection is not None:
                self._connection.has_tried.wait(max(0.0, ends_s - time.monotonic()))
                if refusal := self._refusal():
                    raise Unavailable(f"ZooKeeper {self.quorum}: {refusal}", may_pass=self._connection.may_pass)
            if client.connected:
                return client
            advice = self._advice(client)
            raise Unavailable(
                f"no ZooKeeper server of {self.quorum} answered within {self._connect_s_max:g} s: {advice}"
            )
        except BaseException:
            client.stop()
            client.close()
            raise

    def _advice(self, client: KazooClient) -> str:
        """Return the likely reason why no server of the quorum opens a session. Raises `Unavailable` at once if for
        every server there is a reason that does not pass by itself, or if one of the two sides rejects the other's TLS
        certificate."""
        reasons = [self._reason(*place[:2]) for place in client.hosts]
        found = [each for each in reasons if each is not None]
        refused: str | None = next((each for each in found if isinstance(each, Refusal)), None)
        if refused is None and len(found) == len(reasons):
            refused = found[0]
        if refused is not None:
            raise Unavailable(f"no session with ZooKeeper {self.quorum}: {refused}", may_pass=False)
        return found[0] if found else "check the address"

    def _reason(self, host: str, port: int) -> str | None:
        """Return why this server opens no session, if its name, its limit of connections or TLS is the reason."""
        server = f"the ZooKeeper server {host}:{port}"
        full = (
            f"{server} closes each connection at once, probably because this machine has reached maxClientCnxns of "
            "its zoo.cfg; close other clients, or raise maxClientCnxns"
        )
        try:
            occupy_standard()
            with socket.create_connection((host, port), _PROBE_S_MAX) as sock:
                sock.settimeout(_PROBE_S_MAX)
                with suppress(TimeoutError):  # a server waits for the client's first bytes
                    sock.recv(1)
                    return full
        except socket.gaierror as error:
            is_unknown = error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
            return f"the host {host} is unknown: correct the URL, or this machine's DNS" if is_unknown else None
        except ConnectionResetError:
            return full
        except OSError:
            return None
        return probe((host, port), self._tls, server, _TLS)

    def _refusal(self) -> str:
        """Return why the last authentication failed; empty if it did not fail."""
        return self._connection.failure if self._connection is not None else ""

    def _roots(self) -> list[str]:
        """Return the root znodes of HBase clusters: those with an `hbaseid`, which is never deleted."""
        found = (f"/{name}" for name in self.ask("get_children", "/"))
        return sorted(name for name in found if self.ask("exists", f"{name}/hbaseid"))
