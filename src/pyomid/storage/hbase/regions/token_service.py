"""Delegation tokens from HBase, which authenticate this client's user on machines without Kerberos.

HBase stores no tokens: it verifies their signature until they expire (`hbase.auth.token.max.lifetime`, seven days by
default), and cannot renew them. The coprocessor `TokenProvider` of the region of `hbase:meta` issues them to clients
that authenticated by Kerberos.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from google.protobuf.message import DecodeError

from pyomid.errors import Corruption, Misuse
from pyomid.storage.hbase.regions.locations import META_TABLE
from pyomid.storage.hbase.regions.operations import RegionOperations
from pyomid.storage.hbase.regions.steps import Budget, Steps, parsed
from pyomid.storage.hbase.rpc.frames import Reply
from pyomid.storage.hbase.rpc.hbase_pb2 import (
    CoprocessorServiceRequest,
    CoprocessorServiceResponse,
    GetAuthenticationTokenResponse,
    Token,
    TokenIdentifier,
)
from pyomid.storage.hbase.sasl import Credentials
from pyomid.types import TaskToken

_LENGTH_BYTES: Final = 4
_REUSE_SHARE: Final = 0.1
"""New jobs get a token for this share of its lifetime, so that each job has at least the rest."""


def token_steps(operations: RegionOperations, budget: Budget) -> Steps[Token]:
    """Fetch a token. `Misuse` if HBase refuses: the coprocessor is missing, or the client itself works by a token."""
    request = CoprocessorServiceRequest()
    request.call.row, request.call.request = b"", b""
    request.call.service_name, request.call.method_name = "AuthenticationService", "GetAuthenticationToken"
    while True:
        region = yield from operations.locate_steps(META_TABLE, b"", budget)
        request.region.CopyFrom(region.specifier)
        answer = yield from operations.ask_region_steps(region, "ExecService", request, budget)
        if isinstance(answer, Reply):
            given = parsed(CoprocessorServiceResponse, answer).value.value
            try:
                return GetAuthenticationTokenResponse.FromString(given).token
            except DecodeError as error:
                raise Corruption(f"HBase's reply holds no delegation token: {error}") from error
        yield budget.pause()


def task_token(given: Token) -> TaskToken:
    """Return the token in the form that is sent to tasks."""
    known = _identifier(given)
    return TaskToken(known.username.decode(errors="replace"), known.expiration_date, given.SerializeToString())


def credentials_of(token: TaskToken) -> Credentials:
    given = Token.FromString(token.secret)
    return Credentials.of_token(given.identifier, given.password)


class TokenKeeper:
    """Caches the token for tasks, and fetches a new one in time. Thread-safe."""

    def __init__(self, fetch: Callable[[], Token]) -> None:
        self._fetch = fetch
        self._lock = threading.Lock()
        self._token: TaskToken | None = None
        self._reuse_until_s = 0.0

    def __call__(self) -> TaskToken:
        """Return a token with at least nine tenths of its lifetime left. May wait for HBase."""
        with self._lock:
            now_s = time.monotonic()
            if self._token is None or now_s >= self._reuse_until_s:
                given = self._fetch()
                known = _identifier(given)
                life_s = (known.expiration_date - known.issue_date) / 1000
                if life_s <= 0:
                    raise Misuse(
                        f"HBase issues tokens with a lifetime of {life_s:g} s: correct hbase.auth.token.max.lifetime"
                    )
                self._token, self._reuse_until_s = task_token(given), now_s + life_s * _REUSE_SHARE
            return self._token


def _identifier(given: Token) -> TokenIdentifier:
    """Parse the identifier, which follows its own length (Java's `Writable`)."""
    try:
        return TokenIdentifier.FromString(given.identifier[_LENGTH_BYTES:])
    except DecodeError as error:
        raise Corruption(f"HBase's delegation token has a malformed identifier: {error}") from error
