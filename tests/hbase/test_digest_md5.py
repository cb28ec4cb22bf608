"""How HBase is shown a delegation token: by the examples of RFC 2831, and against a server's end written from it. The
servers of HBase are in `test_delegation_tokens.py`."""

from __future__ import annotations

import hashlib
import hmac
import io
from collections.abc import Generator

import pytest

from pyomid.errors import Corruption
from pyomid.omid.hbase.deployment import TokenKeeper, credentials_of, task_token
from pyomid.omid.hbase.rpc.failures import AuthenticationFailed
from pyomid.omid.hbase.rpc.handshake import SimpleHandshake, TokenHandshake
from pyomid.omid.hbase.rpc.hbase_pb2 import Token, TokenIdentifier
from pyomid.omid.hbase.sasl import Agreed, Credentials, Integrity, Protection, SaslRefused, digest_steps

CHRIS = Credentials(b"chris", b"secret")
CHALLENGE = b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8'


def ended(exchange: Generator[bytes, bytes, Agreed], answer: bytes) -> Agreed:
    with pytest.raises(StopIteration) as end:
        exchange.send(answer)
    agreed: Agreed = end.value.value
    return agreed


@pytest.mark.parametrize(
    ("uri", "client_nonce", "nonce", "response", "proof"),
    [
        (
            "imap/elwood.innosoft.com",
            b"OA6MHXh6VqTrRk",
            b"OA6MG9tEQGm2hh",
            b"d388dad90d4bbd760a152321f2143af7",
            b"ea40f60335c427b5527b84dbabcdfffd",
        ),
        (
            "acap/elwood.innosoft.com",
            b"OA9BSuZWMSpW8m",
            b"OA9BSXrbuRhWay",
            b"6084c6db3fede7352c551284490fd0fc",
            b"2f0b3d7c3c2e486600ef710726aa2eae",
        ),
    ],
    ids=["imap", "acap"],
)
def test_the_examples_of_rfc_2831(uri: str, client_nonce: bytes, nonce: bytes, response: bytes, proof: bytes) -> None:
    exchange = digest_steps(CHRIS, None, uri=uri, client_nonce=client_nonce)
    assert next(exchange) == b""
    answer = exchange.send(CHALLENGE.replace(b"OA6MG9tEQGm2hh", nonce))
    assert b"response=" + response + b"," in answer
    assert b"secret" not in answer
    assert ended(exchange, b"rspauth=" + proof) == Agreed(None, None)


@pytest.mark.parametrize(
    ("challenge", "wanted", "said"),
    [
        (b"nothing of the kind", None, "is not a DIGEST-MD5"),
        (b'realm="r",algorithm=md5-sess', None, "is not a DIGEST-MD5"),
        (b'nonce="n",algorithm=md5', None, "is not a DIGEST-MD5"),
        (b'nonce="n",algorithm=md5-sess,qop="auth-conf"', None, "are broken"),
        (b'nonce="n",algorithm=md5-sess,qop="auth,auth-int"', Protection.PRIVACY, "encrypt by TLS"),
        (b'nonce="n",algorithm=md5-sess,qop="auth"', Protection.INTEGRITY, "offers authentication, not integrity"),
    ],
)
def test_an_unsupported_challenge_is_refused(challenge: bytes, wanted: Protection | None, said: str) -> None:
    exchange = digest_steps(CHRIS, wanted)
    next(exchange)
    with pytest.raises(SaslRefused, match=said):
        exchange.send(challenge)


def test_a_server_that_does_not_know_the_secret_is_refused() -> None:
    exchange = digest_steps(CHRIS, None)
    next(exchange)
    exchange.send(CHALLENGE)
    with pytest.raises(SaslRefused, match="does not know the token's secret"):
        exchange.send(b"rspauth=ea40f60335c427b5527b84dbabcdfffd")


# Integrity


def test_each_message_has_a_code_and_a_sequence_number() -> None:
    """Beside the RFC's formula, once more: HMAC-MD5 over number and message, ten bytes of it, version, number."""
    session = hashlib.md5(b"session").digest()

    def sealed(way: bytes, number: int, message: bytes) -> bytes:
        key = hashlib.md5(session + b"Digest session key to %s signing key magic constant" % way).digest()
        code = hmac.new(key, number.to_bytes(4, "big") + message, hashlib.md5).digest()[:10]
        return message + code + b"\0\1" + number.to_bytes(4, "big")

    ours = Integrity(session)
    for number, message in enumerate((b"one", b"", b"three" * 1000)):
        assert ours.wrap(message, encrypted=False) == sealed(b"client-to-server", number, message)
        assert ours.unwrap(sealed(b"server-to-client", number, message), encrypted=False) == message


@pytest.mark.parametrize("change", ["message", "code", "number", "short", "again", "other way"])
def test_a_changed_message_is_detected(change: str) -> None:
    session = bytes(16)

    class Server(Integrity):
        def __init__(self) -> None:
            super().__init__(session)
            self._keys = self._keys[::-1]

    ours, server = Integrity(session), Server()
    first, token = server.wrap(b"first", encrypted=False), bytearray(server.wrap(b"second", encrypted=False))
    assert ours.unwrap(first, encrypted=False) == b"first"
    if change == "short":
        token = token[:15]
    elif change == "again":
        token = bytearray(first)
    elif change == "other way":
        token = bytearray(Integrity(session).wrap(b"second", encrypted=False))
    else:
        token[{"message": 0, "code": -16, "number": -1}[change]] ^= 1
    with pytest.raises(Corruption):
        ours.unwrap(bytes(token), encrypted=False)


# The dialogue with a region server


def given(*, life_s: int = 600, user: str = "alice", sequence: int = 1) -> Token:
    identifier = TokenIdentifier(
        kind=TokenIdentifier.HBASE_AUTH_TOKEN,
        username=user.encode(),
        key_id=1,
        issue_date=1_000,
        expiration_date=1_000 + life_s * 1_000,
        sequence_number=sequence,
    ).SerializeToString()
    return Token(identifier=len(identifier).to_bytes(4, "big") + identifier, password=b"a secret")


class Refusing:
    """A server's end that says one thing, whatever it hears."""

    def __init__(self, says: bytes) -> None:
        self.read = io.BytesIO(says).read
        self.heard = b""

    def send(self, data: bytes) -> None:
        self.heard += data


def test_a_refused_token_has_a_clear_error() -> None:
    shown = TokenHandshake(lambda: credentials_of(task_token(given())), otherwise=SimpleHandshake)
    server = Refusing(b"\0\0\0\1" + b"\0\0\0\1X" + b"\0\0\0\x0dToken expired")
    with pytest.raises(AuthenticationFailed, match=r"host1 refuses this client: Token expired.*max.lifetime"):
        shown.perform(server, "ClientService", "host1")
    assert server.heard == b"HBas\0\x52" + bytes(4)


def test_a_new_token_is_fetched_after_a_tenth_of_its_lifetime(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, fetched = 50.0, 0

    def fetch() -> Token:
        nonlocal fetched
        fetched += 1
        return given(sequence=fetched)

    monkeypatch.setattr("pyomid.omid.hbase.deployment.time.monotonic", lambda: now_s)
    keeper = TokenKeeper(fetch)
    first = keeper()
    now_s = 109.0
    assert keeper() is first
    now_s = 110.0
    assert keeper() != first
    assert fetched == 2
    assert (first.user, first.expires_ms) == ("alice", 601_000)


def test_no_text_of_a_token_shows_its_secret() -> None:
    token = task_token(given())
    for text in (repr(token), str(token), repr(credentials_of(token))):
        assert "secret" not in text.replace("secret=", "")
        assert "YSBzZWNyZXQ" not in text  # Base64 of it
