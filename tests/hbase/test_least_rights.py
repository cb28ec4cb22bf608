"""The table of rights in docs/hbase.md, by a real access controller: each role does its work with these rights, and
without any one of them is told which one it lacks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest
from hbase_processes import TsoProcess, confirm_tables
from java_needed import needs_java

import pyomid
from access_control import GLOBAL, Rights, guarded_server
from pyomid.cli import main
from pyomid.database.database import Database
from pyomid.errors import OmidError
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.codec.keyvalues import LATEST, KeyValue
from pyomid.omid.hbase.regions.admin import Admin, FamilyDescriptor, TableDescriptor
from pyomid.omid.hbase.rpc.requests import RowMutation, puts
from pyomid.omid.hbase.zookeeper import ZooKeeper
from pyomid.protocol.hashing import table_id
from pyomid.types import Column, CommitRequest, RowWrite

pytestmark = [pytest.mark.hbase, pytest.mark.long]

PAGE: Final = Path(__file__).parents[2] / "docs" / "hbase.md"
TSO: Final = "the TSO"

WHERE: Final = {
    "data tables": ("first", "t", "u", "old", "PYOMID_MARKERS"),
    "namespace": ("@default",),
    "global": (GLOBAL,),
}
"""What a column of the page stands for, where it is no table's name."""


def rights_of_roles() -> dict[str, dict[str, str]]:
    """Role → where → letters, as the page has them."""
    lines = PAGE.read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("| role |"))
    columns = [cell.strip(" `") for cell in lines[first].split("|")[2:-1]]
    found: dict[str, dict[str, str]] = {}
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        role, *cells = (cell.strip(" `") for cell in line.split("|")[1:-1])
        found[role] = {column: letters for column, letters in zip(columns, cells, strict=True) if letters}
    return found


ROLES: Final = rights_of_roles()
LACKING: Final = [
    (role, where, right) for role, granted in ROLES.items() for where, letters in granted.items() for right in letters
]


def user_of(role: str, where: str = "", right: str = "") -> str:
    """Who has all rights of the role, but for this one."""
    return f"{role} {where} {right}".strip().replace(" ", "_")


@contextmanager
def acting_as(user: str) -> Iterator[None]:
    """HBase without Kerberos believes the name of the operating system's user."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("LOGNAME", user)
        yield


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A deployment over an HBase that asks for rights, with a user for each role and for each right that it could lack.
    Whoever runs the tests may do everything."""
    needs_java()
    folder = tmp_path_factory.mktemp("guarded")
    server = guarded_server(folder)
    server.start()
    cluster = Cluster(ZooKeeper(server.quorum))
    try:
        made = f"omid+hbase://{server.quorum}/hbase"
        assert main(["init", made, "--commit-table-regions", "1"]) == 0
        Admin(cluster).create_table(TableDescriptor("old", (FamilyDescriptor(b"f"),)))
        cluster.rows("old", [RowMutation(b"r", (puts([KeyValue(b"r", b"f", b"q", LATEST, b"v")]),))])
        grant_all(Rights(cluster))
        yield made
    finally:
        cluster.close()
        server.kill()


def grant_all(rights: Rights) -> None:
    for role, granted in ROLES.items():
        for lacks in [None, *(each for each in LACKING if each[0] == role)]:
            for column, letters in granted.items():
                left = letters.replace(lacks[2], "") if lacks is not None and lacks[1] == column else letters
                for where in WHERE.get(column, (column,)):
                    rights.grant(user_of(*lacks) if lacks else user_of(role), where, left)
    rights.wait_until_known("old")


@pytest.fixture(scope="module")
def tso(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TsoProcess]:
    """The superuser's, with work left for each role."""
    with leading(url, tmp_path_factory.mktemp("tso") / "log") as leader:
        leader.wait_until_leading()
        with pyomid.connect(url) as database:
            confirm_tables(database)  # those that were refused left a ceiling and no epoch, as a Java TSO does
            database.create_table("t", ["f"])
            database.create_table("u", ["f"], ttl_seconds=100)
            database.run_once("first", lambda tx: None)
            half_done(database, "t")
            half_done(database, "u")
        yield leader
        assert leader.stop() == 0


def leading(url: str, log: Path) -> TsoProcess:
    """Of the user that is acted as. A former one that was refused gave no lease back."""
    zookeeper = ZooKeeper(urlsplit(url).netloc)
    if zookeeper.ask("exists", "/omid/tso-lease"):
        zookeeper.ask("set", "/omid/tso-lease", b"")
    zookeeper.close()
    return TsoProcess(url, log, options=("--store-retry", "5"))


def half_done(database: Database, table: str) -> None:
    """Committed, and its client died: an entry, no shadow cell. Who reads it looks it up, who compacts it heals it:
    W has passed it."""
    deployment = database._core.deployment
    begun = deployment.tso.begin()
    start_ts = begun.start_ts
    deployment.store.write_cells(table, start_ts, [RowWrite(b"half", ((Column(b"f", b"q"), b"v"),))])
    reply = deployment.tso.commit(CommitRequest(start_ts, (start_ts,), (table_id(table.encode()),)))
    assert reply.committed
    begun.end()
    while deployment.tso.status().watermark <= reply.commit_ts:
        pass  # the TSO moves it


# The TSO: before the fixture's leads


def lead(url: str, log: Path, user: str) -> None:
    """Commits are those of the superuser, and so is the sanitizing that the TSO deletes for."""
    with acting_as(user):
        leader = leading(url, log)
    with leader:
        leader.wait_until_leading()
        with pyomid.connect(url, commitRetrySeconds=5) as database:
            if not database.tables():
                database.create_table("first", ["f"])
            with database.begin() as tx:
                tx.table("first").put(b"r", {b"f:q": b"v"})
            start_ts = tx.start_ts
            database.drain()
            while database._core.deployment.tso.status().watermark <= start_ts:
                pass  # the TSO moves it
            database._core.deployment.tso.advance_horizon(start_ts)
        assert leader.stop() == 0


@pytest.mark.parametrize("lacks", [each for each in LACKING if each[0] == TSO], ids=" ".join)
def test_a_tso_without_a_right_ends_and_says_which(url: str, tmp_path: Path, lacks: tuple[str, str, str]) -> None:
    with pytest.raises((AssertionError, OmidError)):
        lead(url, tmp_path / "log", user_of(*lacks))
    check_told((tmp_path / "log").read_text(), lacks)


def test_a_tso_leads_with_its_rights(url: str, tmp_path: Path) -> None:
    lead(url, tmp_path / "log", user_of(TSO))


# The others


def works_as_client(url: str) -> None:
    """As a Spark job does too: plain and leased, under an id, over what another client left half done."""
    with pyomid.connect(url) as database:
        for leased in (False, True):
            with database.begin(lease=leased) as tx:
                tx.table("t").put(b"r", {b"f:q": b"v"})
            with database.begin(lease=leased) as tx:
                assert tx.table("t").get(b"r") == {b"f:q": b"v"}
                assert [row for row, _ in tx.table("t").scan()] == [b"half", b"r"]
        database.run_once(f"id {time.time_ns()}", lambda tx: tx.table("t").put(b"r", {b"f:q": b"w"}))


def makes_tables(url: str) -> None:
    with pyomid.connect(url) as database:
        database.create_table("made", ["f"])
        database.drop_table("made")


def keeps_up(url: str) -> None:
    with pyomid.connect(url, runIdDays=1e-9) as database:
        database.expire()
        database.compact()
        database.sanitize()
        assert database.verify().ok


def adopts(url: str) -> None:
    assert main(["adopt", url, "old", "f"]) == 0


def backs_up(url: str) -> None:
    assert main(["backup", url, "monday"]) == 0


WORK: Final[dict[str, Callable[[str], None]]] = {
    "clients and jobs": works_as_client,
    "creators of tables": makes_tables,
    "upkeep": keeps_up,
    "adopt": adopts,
    "backup": backs_up,
}


@pytest.mark.parametrize("lacks", [each for each in LACKING if each[0] in WORK], ids=" ".join)
def test_the_error_names_the_missing_right(
    url: str,
    tso: TsoProcess,
    lacks: tuple[str, str, str],
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By the error; by the log where others do what is left (completion)."""
    said = ""
    if lacks in (("upkeep", "OMID_COMMIT_TABLE", "W"), ("upkeep", "PYOMID_META", "W")):
        with pyomid.connect(url) as database:
            half_done(database, "u")  # what was left is done by now, but for what is refused here
            database.run_once(f"old {time.time_ns()}", lambda tx: None)
    with acting_as(user_of(*lacks)):
        try:
            WORK[lacks[0]](url)
        except (OmidError, AssertionError) as error:
            said = str(error)
    check_told(said + capsys.readouterr().err + caplog.text, lacks)


@pytest.mark.parametrize("role", WORK)
def test_each_role_does_its_work_with_its_rights(
    url: str, tso: TsoProcess, role: str, caplog: pytest.LogCaptureFixture
) -> None:
    with acting_as(user_of(role)):
        WORK[role](url)
    assert "denied" not in caplog.text


def test_the_page_lists_each_role() -> None:
    assert set(ROLES) == {TSO, *WORK}


def check_told(text: str, lacks: tuple[str, str, str]) -> None:
    _, where, right = lacks
    action = {"R": "READ", "W": "WRITE", "C": "CREATE", "A": "ADMIN"}[right]
    refusals = [line for line in text.splitlines() if "permission denied: grant the user this right" in line]
    assert any(f"action={action}" in line and (where in WHERE or where in line) for line in refusals), text[-2000:]
