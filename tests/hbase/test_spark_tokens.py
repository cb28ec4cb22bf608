"""Spark over an HBase with Kerberos: the driver has a ticket, the workers only the tokens that it sends them."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hbase_processes import TsoProcess

from kdc import Kdc
from kerberized import ALICE, SERVERS, TOKENS, kerberized_hbase, url_by_keytab, url_by_ticket
from pyomid.cli import main
from pyomid.cli.hbase import HBaseServer
from pyomid.omid.hbase.rpc.hbase_pb2 import Token
from spark_cluster import standalone_cluster

pytestmark = [pytest.mark.spark, pytest.mark.hbase, pytest.mark.soak, pytest.mark.timeout(900)]

LIFE_S = 60


@pytest.fixture(scope="module")
def secured(kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HBaseServer]:
    """Whose tokens live for a minute."""
    settings = {
        "hbase.coprocessor.region.classes": TOKENS,
        "hbase.auth.token.max.lifetime": str(1000 * LIFE_S),
    }
    with kerberized_hbase(tmp_path_factory.mktemp("secured"), kdc, settings) as server:
        yield server


@pytest.fixture(scope="module")
def folder(kdc: Kdc, secured: HBaseServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a driver that did all of its work: what it told, Spark's logs, its own."""
    made = tmp_path_factory.mktemp("driver")
    by_keytab = url_by_keytab(secured, kdc)
    assert main(["init", by_keytab, "--commit-table-regions", "2"]) == 0
    kdc.kinit(ALICE, kdc.folder / f"{ALICE}.keytab", made / "cache")
    nothing = {"KRB5CCNAME": f"FILE:{made}/no-cache", "KRB5_CONFIG": os.devnull}
    with (
        TsoProcess(by_keytab, made / "tso.log") as tso,
        standalone_cluster(made, nothing) as master,
        open(made / "driver.log", "w") as log,
    ):
        tso.wait_until_leading()
        program = Path(__file__).with_name("ticketless_driver.py")
        paths = os.pathsep.join(str(program.parent.parent / name) for name in ("support", "spark"))
        known = {**os.environ, "KRB5CCNAME": f"FILE:{made}/cache", "PYTHONPATH": paths}
        command = [sys.executable, str(program), master, url_by_ticket(secured), SERVERS, str(made)]
        ran = subprocess.run(command, env=known, stdout=log, stderr=log, timeout=800, check=False)
        assert ran.returncode == 0, (made / "driver.log").read_text()[-3000:]
    return made


@pytest.fixture(scope="module")
def told(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "told").read_text())
    return found


def test_workers_without_a_ticket_do_all_work(told: dict[str, Any]) -> None:
    assert told["tickets"] == ["none", "none"]
    assert told["user"].startswith("alice")
    assert told["transaction"] == [200, 191, 2, 3]
    assert told["source"] == [20, 100, 50, 1]
    assert told["streams"] == [50, 50]
    assert told["upkeep"] == ["t", True]


def test_an_application_outlives_the_lifetime_of_its_tokens(told: dict[str, Any], folder: Path) -> None:
    written, read = told["long"]
    assert written == read >= 2
    assert len(tokens(folder)) > 1


def test_no_text_of_spark_shows_a_token(folder: Path) -> None:
    shown = [path for path in folder.rglob("*") if path.is_file() and path.name != "tokens"]
    names = " ".join(str(path) for path in shown)
    assert "eventlog" in names or "app-" in names
    assert any(path.name == "stderr" for path in shown), "no log of an executor"
    assert "omid" in (folder / "plan").read_text()
    for path in shown:
        content = path.read_bytes()
        for secret in tokens(folder):
            for form in (secret, secret.hex().encode(), base64.b64encode(secret), repr(secret)[2:-1].encode()):
                assert form not in content, f"{path} shows a token"


def tokens(folder: Path) -> list[bytes]:
    """The secrets of those that the driver saw."""
    lines = (folder / "tokens").read_text().splitlines()
    return [Token.FromString(bytes.fromhex(line)).password for line in lines]
