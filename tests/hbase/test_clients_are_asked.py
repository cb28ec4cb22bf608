"""A cluster's TSO that requires TLS, a certificate and a token, which clients give as options of the URL."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from hbase_processes import TsoProcess

import pyomid
from pyomid.errors import Misuse, OmidError, Unavailable
from pyomid.storage.hbase.cluster import Cluster


@pytest.fixture
def shown(tmp_path: Path) -> dict[str, str]:
    """Options of a client that shows all: a certificate that is its own authority, of the server and the client."""
    certificate, key, token = tmp_path / "both.pem", tmp_path / "both.key", tmp_path / "token"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days",
         "2", "-subj", "/CN=both", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key),
         "-out", str(certificate)],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    token.write_text("a secret\n")
    return {"tlsCa": str(certificate), "tlsCert": str(certificate), "tlsKey": str(key), "tokenFile": str(token)}


@pytest.fixture
def asking(url: str, cluster: Cluster, tmp_path: Path, shown: dict[str, str]) -> Iterator[TsoProcess]:
    options = ("--tls-cert", shown["tlsCert"], "--tls-key", shown["tlsKey"], "--tls-client-ca", shown["tlsCa"])
    log = tmp_path / "tso.log"
    with TsoProcess(url, log, options=(*options, "--token-file", shown["tokenFile"])) as process:
        process.wait_until_leading()
        yield process
        process.stop()


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
