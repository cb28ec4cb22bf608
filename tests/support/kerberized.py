"""A real HBase and ZooKeeper that take nobody without a ticket, beside a real KDC."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from kdc import REALM, Kdc, running_kdc
from pyomid.cli.hbase import HBaseServer
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.deployment import HBaseOptions, open_cluster
from pyomid.omid.hbase.kerberos import KerberosOptions
from pyomid.omid.hbase.sasl import Protection

ALICE: Final = f"alice@{REALM}"
SERVERS: Final = f"hbase/localhost@{REALM}"
ZOOKEEPER: Final = f"zookeeper/localhost@{REALM}"

TOKENS: Final = "org.apache.hadoop.hbase.security.token.TokenProvider"
"""The coprocessor that gives delegation tokens."""


@contextmanager
def kdc_of_servers(folder: Path, *users: str) -> Iterator[Kdc]:
    """With the principals of the servers, alice's, and these."""
    with running_kdc(folder) as running:
        for principal in (ALICE, SERVERS, ZOOKEEPER, *users):
            running.add(principal)
        yield running


@contextmanager
def kerberized_hbase(folder: Path, kdc: Kdc, settings: Mapping[str, str] | None = None) -> Iterator[HBaseServer]:
    """HBase and ZooKeeper, in one process."""
    server = kerberized_server(folder, kdc, settings, heap_mb=512)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def kerberized_server(
    folder: Path, kdc: Kdc, settings: Mapping[str, str] | None = None, *, heap_mb: int
) -> HBaseServer:
    """Not started. It offers each protection, and lets alice act for carol."""
    keytab = kdc.folder / f"hbase_localhost@{REALM}.keytab"
    jaas = "".join(
        f"{section} {{ com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
        f'useTicketCache=false keyTab="{kdc.folder}/{file}" principal="{principal}"; }};\n'
        for section, file, principal in (
            ("Server", f"zookeeper_localhost@{REALM}.keytab", ZOOKEEPER),
            ("Client", keytab.name, SERVERS),
        )
    )
    (kdc.folder / "jaas.conf").write_text(jaas)
    return HBaseServer(
        folder,
        heap_mb=heap_mb,
        settings={
            "hbase.security.authentication": "kerberos",
            "hadoop.security.authorization": "true",  # without it HBase lets everybody act in any name
            "hbase.rpc.protection": "authentication,integrity,privacy",
            **{
                f"hbase.{role}.{key}": value
                for role in ("master", "regionserver")
                for key, value in (("keytab.file", str(keytab)), ("kerberos.principal", SERVERS))
            },
            **(settings or {}),
        },
        core_settings={
            "hadoop.security.authentication": "kerberos",
            "hadoop.proxyuser.alice.hosts": "*",
            "hadoop.proxyuser.alice.users": "carol",
        },
        java_options=(
            f"-Djava.security.krb5.conf={kdc.krb5_conf}",
            f"-Djava.security.auth.login.config={kdc.folder}/jaas.conf",
            "-Dzookeeper.authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        ),
    )


def kerberos_options(
    kdc: Kdc, protection: Protection | None = None, *, principal: str = ALICE, **others: str
) -> HBaseOptions:
    """By the keytab of the principal."""
    keytab = str(kdc.folder / f"{principal.replace('/', '_')}.keytab")
    named = {"hbase_principal": f"hbase/_HOST@{REALM}", "zookeeper_principal": ZOOKEEPER, **others}
    return HBaseOptions(kerberos=KerberosOptions(principal, keytab, protection=protection, **named))


def opened(secured: HBaseServer, chosen: HBaseOptions, *, deadline_s: float = 60.0) -> Cluster:
    return open_cluster(secured.quorum, "/hbase", chosen, deadline_s=deadline_s)


def url_by_ticket(secured: HBaseServer, **options: object) -> str:
    """Of whose ticket is in the cache."""
    shown = {
        "authentication": "kerberos",
        "hbasePrincipal": f"hbase/_HOST@{REALM}",
        "zookeeperPrincipal": ZOOKEEPER,
        **options,
    }
    return f"omid+hbase://{secured.quorum}/hbase?{urlencode(shown)}"


def url_by_keytab(secured: HBaseServer, kdc: Kdc, principal: str = ALICE, **options: object) -> str:
    return url_by_ticket(secured, principal=principal, keytab=kdc.folder / f"{principal}.keytab", **options)
