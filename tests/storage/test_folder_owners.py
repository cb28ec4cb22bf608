"""Whose a folder is: nobody else reads it, follows from it, or is followed into it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

import pyomid
from conformance import in_forked_child
from pyomid.errors import Misuse
from pyomid.folder import EmbeddedStore, open_folder
from pyomid.system import is_shared
from waiting import until

pytestmark = pytest.mark.fast

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs to become other users")
ANNA, BERT, TEAM = 4001, 4002, 4100


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}


def use(folder: Path) -> None:
    """Everything that a process makes in it."""
    access = "group" if is_shared(folder) else "owner"
    with pyomid.connect(f"omid://{folder}?folderAccess={access}") as db:
        db._core.deployment.tso.fence(1)
        until((folder / "upkeep").exists, "no upkeep")


@pytest.mark.parametrize(("shared", "file", "inner"), [(False, 0o600, 0o700), (True, 0o660, 0o2770)])
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_new_folder_is_its_owners_or_its_groups(
    tmp_path: Path, shared: bool, file: int, inner: int, umask: int
) -> None:
    before = os.umask(umask)
    try:
        folder = open_folder(tmp_path / "db", shared=shared)
        use(folder)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == inner
    found = modes(folder)
    assert found.pop("data") == inner
    assert {name: mode for name, mode in found.items() if mode != file} == {}
    files = {"LAYOUT", "LAYOUT.lock", "files.json", "upkeep", "data/data.mdb", "data/lock.mdb", "data/shared"}
    assert {*files, "data/writer"} == set(found) - {"upkeep.json"}, "the note of a round of upkeep may be there"


def test_an_empty_folder_becomes_its_owners_alone(tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    (tmp_path / "db").chmod(0o777)
    open_folder(tmp_path / "db")
    assert stat.S_IMODE((tmp_path / "db").stat().st_mode) == 0o700


def test_a_folder_that_everybody_may_write_in_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    tmp_path.chmod(0o1777)
    with pytest.raises(Misuse, match="world-writable"):
        open_folder(tmp_path)
    assert not (tmp_path / "LAYOUT").exists()
    open_folder(tmp_path / "db").chmod(0o707)
    with pytest.raises(Misuse, match="world-writable"):
        EmbeddedStore(tmp_path / "db")


def test_an_owners_folder_is_not_shared_by_asking(tmp_path: Path) -> None:
    open_folder(tmp_path / "db")
    with pytest.raises(Misuse, match="chmod -R g"):
        open_folder(tmp_path / "db", shared=True)


@pytest.mark.parametrize("name", ["LAYOUT.lock", "data/writer", "data/shared"])
def test_no_link_in_the_folder_is_followed(tmp_path: Path, name: str) -> None:
    """It would have its target overwritten, or appended to."""
    folder = open_folder(tmp_path / "db")
    (tmp_path / "target").write_text("precious")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "target")
    with pytest.raises(Misuse, match=f"{Path(name).name} is a symbolic link"):
        use(folder)
    assert (tmp_path / "target").read_text() == "precious"


def test_no_link_is_followed_while_the_folder_is_made(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("precious")
    for name in ("LAYOUT.new", "LAYOUT.lock"):
        folder = tmp_path / f"of {name}"
        folder.mkdir(mode=0o700)
        (folder / name).symlink_to(tmp_path / "target")
        with pytest.raises(Misuse, match="is a symbolic link"):
            open_folder(folder)
    assert (tmp_path / "target").read_text() == "precious"


def as_user(uid: int, groups: list[int], work: Callable[[], object]) -> str:
    def run() -> None:
        os.setgroups(groups)
        os.setgid(groups[0])
        os.setuid(uid)
        work()

    return in_forked_child(run)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where each user may make a folder."""
    for path in list(tmp_path.parents)[:3]:
        path.chmod(path.stat().st_mode | 0o755)
    tmp_path.chmod(0o1777)
    return tmp_path


@needs_root
def test_another_users_folder_is_refused_unless_a_group_shares_it(place: Path) -> None:
    own, team = place / "own", place / "team"
    assert as_user(ANNA, [TEAM], lambda: open_folder(own)) == ""
    assert as_user(ANNA, [TEAM], lambda: open_folder(team, shared=True)) == ""
    assert as_user(BERT, [TEAM], lambda: open_folder(own, shared=True)) == "Misuse"
    assert as_user(BERT, [TEAM], lambda: open_folder(team, shared=False)) == "Misuse"
    assert as_user(BERT, [BERT], lambda: open_folder(team, shared=True)) == "Misuse"
    assert as_user(BERT, [BERT, TEAM], lambda: open_folder(team, shared=True)) == ""
    with pytest.raises(Misuse, match=f"belongs to user {ANNA}, not to you"):
        open_folder(own, shared=False)  # root too: what it makes there is not its owner's


@needs_root
def test_two_users_of_a_group_take_turns(place: Path) -> None:
    use(open_folder(place / "first"))  # nobody else can read the modules that this imports
    team = place / "team"
    assert as_user(ANNA, [TEAM], lambda: use(open_folder(team, shared=True))) == ""
    assert as_user(BERT, [BERT, TEAM], lambda: use(open_folder(team, shared=True))) == ""
    assert as_user(ANNA, [TEAM], lambda: use(open_folder(team, shared=True))) == ""
