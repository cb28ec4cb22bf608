"""A cluster's TSO that requires TLS, a certificate and a token, which clients give as options of the URL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from hbase_processes import TsoProcess, leading_tso

import pyomid
from certificates import make_certificates
from pyomid.errors import Misuse, OmidError, Unavailable
from pyomid.omid.hbase.cluster import Cluster


@pytest.fixture
def shown(tmp_path: Path) -> dict[str, str]:
    """Options of a client that shows all."""
    made, token = make_certificates(tmp_path), tmp_path / "token"
    token.write_text("a secret\n")
    files = {
        "tlsCa": made / "ca.pem",
        "tlsCert": made / "client.pem",
        "tlsKey": made / "client.key",
        "tokenFile": token,
    }
    return {name: str(file) for name, file in files.items()}


@pytest.fixture
def asking(url: str, cluster: Cluster, tmp_path: Path, shown: dict[str, str]) -> Iterator[TsoProcess]:
    own = str(tmp_path / "server.pem"), str(tmp_path / "server.key")
    options = ("--tls-cert", own[0], "--tls-key", own[1], "--tls-client-ca", shown["tlsCa"])
    log = tmp_path / "tso.log"
    with leading_tso(url, log, options=(*options, "--token-file", shown["tokenFile"])) as process:
        yield process


def test_only_clients_with_certificate_and_token_are_served(
    url: str, asking: TsoProcess, shown: dict[str, str], table_name: str
) -> None:
    with pyomid.connect(f"{url}?{urlencode(shown)}") as database:
        database.create_table(table_name, families=["f"])
        with database.begin() as tx:
            tx.table(table_name).put(b"r", {b"f:q": b"v"})
        with database.begin() as tx:
            assert tx.table(table_name).get(b"r") == {b"f:q": b"v"}
        database.drop_table(table_name)
    refused: tuple[tuple[set[str], type[OmidError]], ...] = (
        ({"tokenFile"}, Misuse),
        ({"tlsCert", "tlsKey"}, Unavailable),
        (set(shown), Unavailable),
    )
    for kept_back, error in refused:
        some = {name: value for name, value in shown.items() if name not in kept_back}
        with pyomid.connect(f"{url}?{urlencode({**some, 'commitRetrySeconds': '2'})}") as stranger:
            with pytest.raises(error):
                stranger.begin()
