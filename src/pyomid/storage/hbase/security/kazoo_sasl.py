"""SASL on kazoo's connections, by `sasl`: kazoo's own needs two unmaintained libraries (decision 0071).

kazoo gives up for good when authentication fails. Here a failure counts as a lost connection, so that a service
survives an outage of its KDC.
"""

from __future__ import annotations

import logging
import threading

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped, ZookeeperError
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import SASL

from pyomid.errors import Corruption
from pyomid.storage.hbase.security.kerberos import Kerberos, KerberosContext, KerberosFailed
from pyomid.storage.hbase.security.sasl import Protection, SaslRefused, exchange_steps

log = logging.getLogger(__name__)


class SaslConnection(ConnectionHandler):  # type: ignore[misc]
    """The connection of a client that is not yet started. `principal`: ZooKeeper's, with _HOST for the host."""

    def __init__(self, client: KazooClient, kerberos: Kerberos, principal: str) -> None:
        # Options that are not None make kazoo call `_authenticate_with_sasl` on each connection.
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
        """Send one token; return the server's answer, or None if it sends none."""
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
