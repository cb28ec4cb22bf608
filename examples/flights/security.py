"""The demo's servers with Kerberos and TLS: `python -m examples.flights hbase --secured`.

    KDC            MIT Kerberos, for this run only: one principal and keytab for each party
    HBase          Kerberos with integrity, TLS with client certificates, delegation tokens for Spark's tasks
    ZooKeeper      Kerberos
    TSOs           TLS with client certificates; their own principal to HBase

KDC and certificates are those of the tests, so the demo runs only from a checkout. It does not show how to store keys.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from urllib.parse import urlencode

from examples.flights import settings

from pyomid.cli.hbase import HBaseServer


class Security:
    """Keys and tickets of one run. Create it before anything connects."""

    def __init__(self, folder: Path) -> None:
        sys.path.insert(0, os.fspath(Path(__file__).parents[2] / "tests" / "support"))
        from certificates import make_certificates, make_java_stores
        from kdc import Kdc
        from kerberized import ALICE, SERVERS, ZOOKEEPER

        self._folder = folder
        self._kdc = Kdc(folder / "kdc")
        os.environ.update(self._kdc.environment, KRB5CCNAME=f"FILE:{folder}/no-cache")
        make_java_stores(make_certificates(folder))
        self._kdc.start()
        try:
            for principal in (ALICE, SERVERS, ZOOKEEPER):
                self._kdc.add(principal)
        except BaseException:
            self._kdc.stop()
            raise

    def server(self, folder: Path, ticks: dict[str, str]) -> HBaseServer:
        from certificates import PASSWORD
        from kerberized import TOKENS, kerberized_server

        stores = {
            f"hbase.rpc.tls.{kind}.{key}": value
            for kind, file in (("keystore", "server.p12"), ("truststore", "trust.p12"))
            for key, value in (("location", str(self._folder / file)), ("type", "pkcs12"), ("password", PASSWORD))
        }
        tls = {
            "hbase.server.netty.tls.enabled": "true",
            "hbase.server.netty.tls.supportplaintext": "false",
            "hbase.server.netty.tls.client.auth.mode": "NEED",
            "hbase.server.netty.tls.verify.client.hostname": "false",
            "hbase.client.netty.tls.enabled": "true",
        }
        tokens = {"hbase.coprocessor.region.classes": TOKENS}
        return kerberized_server(folder, self._kdc, {**ticks, **stores, **tls, **tokens}, heap_mb=1024)

    def options(self) -> str:
        """Return the URL's options, the same for all clients."""
        from kerberized import ALICE, ZOOKEEPER

        shown = {"Ca": "ca.pem", "Cert": "client.pem", "Key": "client.key"}
        files = {f"{who}{what}": self._folder / file for who in ("hbaseTls", "tls") for what, file in shown.items()}
        return urlencode(
            {
                "authentication": "kerberos",
                "principal": ALICE,
                "keytab": self._kdc.folder / f"{ALICE}.keytab",
                "hbasePrincipal": f"hbase/_HOST@{ALICE.partition('@')[2]}",
                "zookeeperPrincipal": ZOOKEEPER,
                "rpcProtection": "integrity",
                **files,
            }
        )

    def tso_options(self) -> dict[str, object]:
        files = {"--tls-cert": "server.pem", "--tls-key": "server.key", "--tls-client-ca": "ca.pem"}
        return {name: self._folder / file for name, file in files.items()}

    def stop(self) -> None:
        self._kdc.stop()


def of_this_run() -> Security | None:
    """Return the security of this run; None without --secured."""
    return Security(settings.FOLDER) if settings.SECURED else None
