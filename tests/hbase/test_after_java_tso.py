"""After a Java TSO led a store, sanitizing deletes no commit of a table that nobody registered (K6)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hbase_processes import give_up_the_lease, leading_tso

import pyomid
from java_omid import JavaClient, JavaTso
from pyomid.cli import main
from pyomid.cli.hbase import HBaseServer
from pyomid.database.database import Database
from pyomid.errors import Misuse
from pyomid.protocol.hashing import table_id
from pyomid.protocol.sanitize import Sanitized, sanitize_entries
from pyomid.types import TABLES_UNCONFIRMED

pytestmark = pytest.mark.long


@pytest.fixture
def forgotten(hbase: HBaseServer, url: str, table_name: str, tmp_path: Path) -> Iterator[str]:
    """A table of which Java's TSO acknowledged a commit whose client died before its shadow cells."""
    port = hbase.ports.zookeeper
    with (
        JavaTso(tmp_path / "java", zookeeper_port=port, lease_s=2.0) as tso,
        JavaClient(port, tso.address) as java,
    ):
        java.ask("create", table_name, "f")
        java.begin("whole")
        java.put("whole", table_name, b"whole", b"f", b"q", b"v")
        java.commit("whole")
        java.begin("torn", dying=True)
        java.put("torn", table_name, b"torn", b"f", b"q", b"v")
        java.commit("torn")
    give_up_the_lease(hbase.quorum)
    yield table_name
    with leading_tso(url, tmp_path / "last.log"), pyomid.connect(url) as database:
        database.drop_table(table_name)


def sanitise(database: Database) -> Sanitized:
    done: Sanitized = database._core.driver.run(sanitize_entries(now_s=time.time() + 1.0, retry_bound_s=0.0))
    return done


def test_an_unregistered_table_keeps_its_commits(
    forgotten: str, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with leading_tso(url, tmp_path / "tso.log"), pyomid.connect(url) as database:
        with pytest.raises(Misuse, match="tables URL confirm"):
            sanitise(database)
        assert main(["tables", url, "discover"]) == 0
        command = f"pyomid tables {url} register {forgotten} f --conflict-level LEVEL"
        assert command in capsys.readouterr().out.splitlines()
        assert main(["tables", url, "confirm"]) == 1
        assert command in capsys.readouterr().out.splitlines()
        with pytest.raises(Misuse, match="tables URL confirm"):
            sanitise(database)
        assert main(command.replace("LEVEL", "cell").split()[1:]) == 0
        assert main(["tables", url, "confirm", "--yes"]) == 0
        assert TABLES_UNCONFIRMED not in database._core.deployment.catalog.unknown_tables()
        assert forgotten in sanitise(database).held_back_by
        with database.begin() as tx:
            assert tx.table(forgotten).get(b"torn") == {b"f:q": b"v"}
    with leading_tso(url, tmp_path / "again.log"), pyomid.connect(url) as database:
        assert TABLES_UNCONFIRMED not in database._core.deployment.catalog.unknown_tables(), "only ours led in between"


def test_forget_removes_the_mark_of_a_missing_table(
    url: str, database: Database, table_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was made and dropped behind pyomid's back: to register it would be to make it again."""
    catalog, number = database._core.deployment.catalog, table_id(table_name.encode())
    catalog.mark_unknown_table(number)
    assert main(["tables", url, "discover"]) == 0
    assert str(number) in capsys.readouterr().out
    assert main(["tables", url, "forget", table_name]) == 0
    assert number not in catalog.unknown_tables()
