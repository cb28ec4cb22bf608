"""Delegation tokens of a real HBase: a client with a ticket fetches them, clients without one use them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from many_messages import check_puts_are_read, check_puts_are_read_on_a_loop, protections

from kdc import Kdc
from kerberized import kerberized_hbase, kerberos_options, opened, url_by_keytab
from pyomid.cli import main
from pyomid.cli.hbase import HBaseServer
from pyomid.errors import Misuse, Unavailable
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.deployment import HBaseOptions, task_tokens, token_keeper
from pyomid.omid.hbase.kerberos import KerberosOptions
from pyomid.omid.hbase.regions.admin import Admin, FamilyDescriptor, TableDescriptor
from pyomid.omid.hbase.rpc.hbase_pb2 import Token, TokenIdentifier
from pyomid.omid.hbase.rpc.requests import RowGet
from pyomid.omid.hbase.sasl import Protection
from pyomid.types import TaskToken

pytestmark = [pytest.mark.hbase, pytest.mark.long]

PROTECTIONS = [Protection.AUTHENTICATION, Protection.INTEGRITY]


@pytest.fixture(scope="module")
def alice(kdc: Kdc, secured: HBaseServer) -> Iterator[Cluster]:
    """Who has a keytab, and the table t."""
    cluster = opened(secured, kerberos_options(kdc), deadline_s=120.0)
    Admin(cluster).create_table(TableDescriptor("t", (FamilyDescriptor(b"f", 1),)))
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def token(alice: Cluster) -> TaskToken:
    return token_keeper(alice)()


def by_token(secured: HBaseServer, token: TaskToken, protection: Protection | None = None) -> Cluster:
    """Somebody without ticket, keytab, or a library of Kerberos."""
    kerberos = KerberosOptions(protection=protection)
    return opened(secured, HBaseOptions(kerberos=kerberos, token=lambda: token), deadline_s=30.0)


@pytest.mark.parametrize("protection", PROTECTIONS)
def test_a_token_suffices_to_put_and_read(secured: HBaseServer, token: TaskToken, protection: Protection) -> None:
    cluster = by_token(secured, token, protection)
    check_puts_are_read(cluster, "t", 100 * protection.value)
    assert protections(cluster) == {protection}
    check_puts_are_read_on_a_loop(cluster, "t", 1000 * protection.value)
    cluster.close()


def test_the_strongest_common_protection_is_integrity(secured: HBaseServer, token: TaskToken) -> None:
    cluster = by_token(secured, token)
    assert cluster.rows("t", [RowGet(b"no row")]) == [[]]
    assert Protection.INTEGRITY in protections(cluster)
    cluster.close()


def test_a_token_names_its_user_and_the_master_accepts_it(secured: HBaseServer, token: TaskToken) -> None:
    cluster = by_token(secured, token)
    assert token.user.startswith("alice")
    assert "t" in Admin(cluster).tables()
    cluster.close()


def test_a_client_with_a_token_gets_no_token(secured: HBaseServer, token: TaskToken) -> None:
    cluster = by_token(secured, token)
    with pytest.raises(Misuse, match="Kerberos"):
        token_keeper(cluster)()
    cluster.close()


def changed(token: TaskToken, *, password: bytes | None = None, expires_ms: int | None = None) -> TaskToken:
    given = Token.FromString(token.secret)
    if password is not None:
        given.password = password
    if expires_ms is not None:
        identifier = TokenIdentifier.FromString(given.identifier[4:])
        identifier.expiration_date = expires_ms
        encoded = identifier.SerializeToString()
        given.identifier = len(encoded).to_bytes(4, "big") + encoded
    return replace(token, secret=given.SerializeToString(), expires_ms=expires_ms or token.expires_ms)


def test_expired_and_foreign_tokens_have_clear_errors(secured: HBaseServer, token: TaskToken) -> None:
    for wrong, why in (
        (changed(token, expires_ms=1_000), "[Ee]xpired.*hbase.auth.token.max.lifetime"),
        (changed(token, password=b"of another"), "refuses this client.*for the cluster that issued it"),
    ):
        cluster = by_token(secured, wrong)
        with pytest.raises(Unavailable, match=why) as found:
            cluster.rows("t", [RowGet(b"r")])
        assert Token.FromString(token.secret).password.hex() not in str(found.value)
        cluster.close()


def test_the_next_connection_uses_the_newest_token(secured: HBaseServer, token: TaskToken) -> None:
    newest = [changed(token, expires_ms=1_000)]
    cluster = opened(secured, HBaseOptions(kerberos=KerberosOptions(), token=lambda: newest[-1]))
    with pytest.raises(Unavailable, match="xpired"):
        cluster.rows("t", [RowGet(b"r")])
    newest.append(token)
    assert cluster.rows("t", [RowGet(b"no row")]) == [[]]
    cluster.close()


def test_a_ticket_replaces_an_expired_token(secured: HBaseServer, kdc: Kdc, token: TaskToken) -> None:
    """The process that commits what tasks wrote for days runs where the driver does."""
    expired = changed(token, expires_ms=1_000)
    cluster = opened(secured, replace(kerberos_options(kdc), token=lambda: expired), deadline_s=30.0)
    assert cluster.rows("t", [RowGet(b"no row")]) == [[]]
    cluster.close()
    nobody = replace(kerberos_options(kdc, principal="nobody"), token=lambda: expired)
    cluster = opened(secured, nobody, deadline_s=30.0)
    with pytest.raises(Unavailable, match=r"token has expired.*does not exist, or this user may not read it"):
        cluster.rows("t", [RowGet(b"r")])
    cluster.close()


def test_privacy_with_a_token_needs_tls(secured: HBaseServer, token: TaskToken) -> None:
    cluster = by_token(secured, token, Protection.PRIVACY)
    with pytest.raises(Unavailable, match="encrypt by TLS"):
        cluster.rows("t", [RowGet(b"r")])
    cluster.close()


def test_run_as_fetches_tokens_of_that_user(secured: HBaseServer, kdc: Kdc) -> None:
    for_carol = opened(secured, kerberos_options(kdc, run_as="carol"))
    token = token_keeper(for_carol)()
    by_it = by_token(secured, token)
    assert by_it.rows("t", [RowGet(b"no row")]) == [[]]
    assert token.user == "carol"
    for_carol.close()
    by_it.close()


def test_an_hbase_without_tokens_has_a_clear_error(kdc: Kdc, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Who asks for one is refused; tasks are sent none, and come by what they have."""
    with kerberized_hbase(tmp_path, kdc) as server:
        assert main(["init", url_by_keytab(server, kdc), "--commit-table-regions", "1"]) == 0
        cluster = opened(server, kerberos_options(kdc))
        with pytest.raises(Misuse, match=r"issues no delegation tokens: add org\.apache.*TokenProvider to its"):
            token_keeper(cluster)()
        by_cache = kerberos_options(kdc)
        by_cache = replace(by_cache, kerberos=replace(by_cache.kerberos or KerberosOptions(), keytab=""))
        for options, told in ((kerberos_options(kdc), 0), (by_cache, 1)):
            caplog.clear()
            tokens = task_tokens(cluster, options)
            assert [tokens(), tokens()] == [None, None]
            assert sum("TokenProvider" in each.getMessage() for each in caplog.records) == told
        cluster.close()
