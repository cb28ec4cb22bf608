"""Keys and certificates of a test, made by openssl and keytool."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from pyomid.cli.hbase import tool

PASSWORD: Final = "changeit"
"""Of the stores for Java."""


def make_certificates(folder: Path) -> Path:
    """An authority (ca.pem, ca.key), and certificates of a server (127.0.0.1, localhost) and a client, in `folder`; and
    of a server whose certificate expired."""
    _openssl(folder, "req", "-x509", *_NEW_KEY, "-days", "2", "-subj", "/CN=authority",
             "-keyout", "ca.key", "-out", "ca.pem")  # fmt: skip
    here = "IP:127.0.0.1,DNS:localhost"
    for name, names, days in (("server", here, "2"), ("client", "DNS:client", "2"), ("expired", here, "-1")):
        (folder / f"{name}.ext").write_text(f"subjectAltName={names}")
        _openssl(folder, "req", *_NEW_KEY, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        _openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                 "-days", days, "-extfile", f"{name}.ext", "-out", f"{name}.pem")  # fmt: skip
    return folder


def make_java_stores(folder: Path) -> None:
    """trust.p12 with the authority; server.p12 and client.p12 with key and certificate; all of `PASSWORD`."""
    command = ["-importcert", "-noprompt", "-alias", "authority", "-file", "ca.pem", "-keystore", "trust.p12"]
    _run(folder, str(tool("keytool")), *command, "-storetype", "PKCS12", "-storepass", PASSWORD)
    for name in ("server", "client"):
        _openssl(folder, "pkcs12", "-export", "-in", f"{name}.pem", "-inkey", f"{name}.key", "-name", name,
                 "-out", f"{name}.p12", "-passout", f"pass:{PASSWORD}")  # fmt: skip


_NEW_KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(folder: Path, *arguments: str) -> None:
    _run(folder, "openssl", *arguments)


def _run(folder: Path, *command: str) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
