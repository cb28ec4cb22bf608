"""A folder tells its own files from copies of them, wherever the copies are put."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

import pyomid
from pyomid.errors import Misuse
from pyomid.folder import file_note
from pyomid.folder.backup import back_up, restore
from pyomid.system import file_birth
from waiting import until

pytestmark = pytest.mark.fast


def served(folder: Path) -> bytes:
    """Open the folder, and change it; return the database's id."""
    with pyomid.connect(f"omid://{folder}?upkeepShare=0") as db:
        deployment = db._core.deployment
        deployment.tso.fence(1)
        return deployment.leader_state.database_id()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that went on after it was copied to `copy`."""
    folder = tmp_path / "db"
    served(folder)
    if not file_birth(folder):
        pytest.skip("this file system records no times of birth")
    copy_of(folder)
    served(folder)
    return folder


def copy_of(folder: Path) -> None:
    """Copy the folder to `copy`; the next file is born later than all of its files."""
    shutil.copytree(folder, folder.with_name("copy"), copy_function=shutil.copy2)
    copied = file_birth(folder.with_name("copy"))

    def has_passed() -> bool:
        (tick := folder.with_name("tick")).write_text("")
        born = file_birth(tick)
        tick.unlink()
        return born != copied

    until(has_passed, "the clock of the file system stands")


def run(*command: str | Path) -> None:
    if shutil.which(str(command[0])) is None:
        pytest.skip(f"this machine has no {command[0]}")
    subprocess.run(command, check=True, capture_output=True)


def in_place_of_the_removed(folder: Path, copy: Path) -> None:
    """On most file systems the copy soon gets the number of the removed inode."""
    inode = os.stat(folder / "data" / "data.mdb").st_ino
    for _ in range(50):
        shutil.rmtree(folder)
        run("cp", "-a", copy, folder)
        if os.stat(folder / "data" / "data.mdb").st_ino == inode:
            return


def in_place_of_the_moved(folder: Path, copy: Path) -> None:
    folder.rename(folder.with_name("former"))
    copy.rename(folder)


def over_the_files(folder: Path, copy: Path) -> None:
    run("cp", "-a", f"{copy}/.", folder)


def by_reference(folder: Path, copy: Path) -> None:
    run("cp", "-a", "--reflink=auto", f"{copy}/data/data.mdb", folder / "data")


def over_the_files_by_rsync(folder: Path, copy: Path) -> None:
    run("rsync", "-a", "--inplace", "--delete", f"{copy}/", f"{folder}/")


def from_an_archive(folder: Path, copy: Path) -> None:
    run("tar", "-C", copy, "-cf", folder.with_name("tar"), ".")
    run("tar", "-C", folder, "-xf", folder.with_name("tar"))


def from_an_archive_over_the_files(folder: Path, copy: Path) -> None:
    run("tar", "-C", copy, "-cf", folder.with_name("tar"), ".")
    run("tar", "-C", folder, "--overwrite", "-xf", folder.with_name("tar"))


def over_the_data_file(folder: Path, copy: Path) -> None:
    shutil.copyfile(copy / "data" / "data.mdb", folder / "data" / "data.mdb")


def renamed_over_the_data_file(folder: Path, copy: Path) -> None:
    os.replace(copy / "data" / "data.mdb", folder / "data" / "data.mdb")


def with_the_note_of_the_original(folder: Path, copy: Path) -> None:
    note = folder.with_name("note")
    shutil.copy2(folder / "files.json", note)
    over_the_files(folder, copy)
    shutil.copyfile(note, folder / "files.json")


@pytest.mark.parametrize(
    "put_back",
    [
        in_place_of_the_removed,
        in_place_of_the_moved,
        over_the_files,
        by_reference,
        over_the_files_by_rsync,
        from_an_archive,
        from_an_archive_over_the_files,
        over_the_data_file,
        renamed_over_the_data_file,
        with_the_note_of_the_original,
    ],
)
def test_a_copy_that_is_put_back_is_refused_until_its_note_is_removed(
    folder: Path, put_back: Callable[[Path, Path], None]
) -> None:
    """Otherwise the timestamps since the copy are handed out again, and a torn copy is opened."""
    before = served(folder)
    put_back(folder, folder.with_name("copy"))
    for _ in range(2):
        with pytest.raises(Misuse, match=r"is a copy of a database's files .* remove .*files\.json"):
            served(folder)
    (folder / "files.json").unlink()
    assert served(folder) != before


def test_a_copy_beside_the_original_is_refused(folder: Path) -> None:
    before, copy = served(folder), folder.with_name("copy")
    with pytest.raises(Misuse, match="is a copy"):
        served(copy)
    (copy / "files.json").unlink()
    assert served(copy) == served(copy) != before == served(folder)


def test_a_copy_of_a_folder_in_use_is_refused_over_its_files(folder: Path) -> None:
    """The process that had it open before the copy is killed after it, a second of work later."""
    shutil.rmtree(folder.with_name("copy"))
    with pyomid.connect(f"omid://{folder}") as db:
        copy_of(folder)
        before = file_birth(folder / "files.json")
        db._core.deployment.tso.fence(1)
        until(lambda: file_birth(folder / "files.json") != before, "the note is not renewed")
    over_the_files(folder, folder.with_name("copy"))
    with pytest.raises(Misuse, match="is a copy"):
        served(folder)


def test_what_a_program_copied_and_wrote_over_its_folder_is_refused(tmp_path: Path) -> None:
    """The copy may be torn, and nobody opened the folder after it."""
    folder, copy = tmp_path / "db", tmp_path / "copy"
    with pyomid.connect(f"omid://{folder}") as db:
        if not file_birth(folder):
            pytest.skip("this file system records no times of birth")
        db.create_table("t", ["f"])
        run("cp", "-a", folder, copy)
        with db.begin() as tx:
            tx.table("t").put(b"k", {b"f:v": b"1"})
    over_the_files(folder, copy)
    with pytest.raises(Misuse, match="is a copy"):
        pyomid.connect(f"omid://{folder}")


def test_a_folder_on_another_file_system_is_a_copy(folder: Path) -> None:
    if os.stat("/dev/shm").st_dev == os.stat(folder).st_dev:
        pytest.skip("this machine has one file system")
    before = served(folder)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        moved = Path(shutil.move(folder, elsewhere))
        with pytest.raises(Misuse, match="is a copy"):
            served(moved)
        (moved / "files.json").unlink()
        assert served(moved) != before


def moved(folder: Path) -> Path:
    return folder.rename(folder.with_name("moved"))


def moved_away_and_back(folder: Path) -> Path:
    away = folder.rename(folder.with_name("away"))
    run("cp", "-a", away, folder)
    shutil.rmtree(folder)
    return away.rename(folder)


def given_to_all(folder: Path) -> Path:
    run("chmod", "-R", "g+r", folder)
    run("chown", "-R", f"{os.geteuid()}:{os.getegid()}", folder)
    return folder


def touched(folder: Path) -> Path:
    for file in folder.rglob("*"):
        os.utime(file, ns=(0, 0))
    return folder


def linked(folder: Path) -> Path:
    link = folder.with_name("link")
    link.symlink_to(folder)
    return link


def with_data_elsewhere(folder: Path) -> Path:
    elsewhere = (folder / "data").rename(folder.with_name("elsewhere"))
    (folder / "data").symlink_to(elsewhere)
    return folder


def archived_in_links(folder: Path) -> Path:
    run("cp", "-al", folder, folder.with_name("archive"))
    return folder


def with_an_unfinished_note(folder: Path) -> Path:
    (folder / "files.new").write_text("{")
    return folder


@pytest.mark.parametrize(
    "changed",
    [
        moved,
        moved_away_and_back,
        given_to_all,
        touched,
        linked,
        with_data_elsewhere,
        archived_in_links,
        with_an_unfinished_note,
    ],
)
def test_the_same_files_are_the_same_database(folder: Path, changed: Callable[[Path], Path]) -> None:
    before = served(folder)
    folder = changed(folder)
    assert [served(folder), served(folder)] == [before, before]


def test_a_restored_folder_is_another_database(folder: Path) -> None:
    """The note in the backup's data is of no file of the restored folder, which has none yet."""
    before = served(folder)
    back_up(folder, folder.with_name("backup"), snapshot_ts=50)
    restore(folder.with_name("backup"), other := folder.with_name("other"))
    assert before != served(other) == served(other)


class Killed(BaseException):
    pass


def noted(folder: Path) -> bytes:
    return served(folder)


def declared_good(folder: Path) -> bytes:
    """A note that cannot be read is none."""
    (folder / "files.json").write_text("")
    return b""


@pytest.mark.parametrize("begun", [noted, declared_good])
@pytest.mark.parametrize("call", range(12))
def test_a_start_that_is_killed_amid_its_note_is_repeated(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: int, begun: Callable[[Path], bytes]
) -> None:
    before, calls = begun(folder), 0

    def killed_at_its_turn(original: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: object, **how: object) -> object:
            nonlocal calls
            if calls == call:
                raise Killed
            calls += 1
            result = original(*args, **how)
            if calls == call:
                raise Killed
            calls += 1
            return result

        return counted

    with monkeypatch.context() as patched:
        for name in ("fsync", "replace"):
            patched.setattr(os, name, killed_at_its_turn(getattr(os, name)))
        for name in ("write", "write_at_once"):
            patched.setattr(file_note.Environment, name, killed_at_its_turn(getattr(file_note.Environment, name)))
        try:
            served(folder)
        except Killed:
            pass
        else:
            assert calls <= call, "more steps than were tried"
    after = served(folder)
    assert after == served(folder)
    assert before in (b"", after)


def test_a_full_disk_stops_no_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = served(folder)

    def is_full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", is_full)
        assert served(folder) == before
    assert served(folder) == before


def test_without_times_of_birth_the_inode_numbers_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_note, "file_birth", lambda path: {})
    first = served(tmp_path / "db")
    assert served(tmp_path / "db") == first
    shutil.copytree(tmp_path / "db", tmp_path / "copy")
    with pytest.raises(Misuse, match="is a copy"):
        served(tmp_path / "copy")
    monkeypatch.undo()  # it records them from now on
    assert served(tmp_path / "db") == first


SERVE = """
set -e
serve() {{ {python} -c 'from pathlib import Path; from test_file_note import served
print(served(Path("'$1'")).hex(), Path("'$1'/data/data.mdb").stat().st_ino, flush=True)'; }}
"""
OVERLAY = """
mount -t tmpfs none {lower}
serve {lower}/db
for xino in off on off; do
    mount -t overlay overlay -o lowerdir={lower},upperdir={upper},workdir={work},xino=$xino {merged}
    serve {merged}/db
    umount {merged}
done
"""


def mounted(script: str, tmp_path: Path, *places: str) -> subprocess.CompletedProcess[str]:
    """Run a script that may mount file systems on these folders."""
    folders = {name: tmp_path / name for name in places}
    for folder in folders.values():
        folder.mkdir()
    return subprocess.run(
        ["unshare", "--mount", "bash", "-c", (SERVE + script).format(python=sys.executable, **folders)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )


mounts = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs to mount a file system")


@mounts
def test_an_overlay_that_is_mounted_again_holds_the_same_database(tmp_path: Path) -> None:
    """Its inode numbers change with its mount options, and the first write to a lower file copies it."""
    done = mounted(OVERLAY, tmp_path, "lower", "upper", "work", "merged")
    if "mount:" in done.stderr:
        pytest.skip(f"this machine mounts no overlay: {done.stderr}")
    assert done.returncode == 0, done.stderr
    ids, inodes = zip(*(line.split() for line in done.stdout.splitlines()), strict=True)
    assert len(ids) == 4
    assert len(set(ids)) == 1
    assert len(set(inodes)) > 1, "the mounts differ in nothing"


SUBVOLUME = """
truncate -s 200M {home}/disk
mkfs.btrfs -q {home}/disk
mount -o loop {home}/disk {disk}
btrfs subvolume create {disk}/live
serve {disk}/live/db >{home}/first
umount {disk}
mount -o loop {home}/disk {disk}
btrfs subvolume snapshot {disk}/live {disk}/snapshot
serve {disk}/live/db >{home}/again
cmp {home}/first {home}/again
! serve {disk}/snapshot/db
"""


@mounts
@pytest.mark.skipif(shutil.which("mkfs.btrfs") is None, reason="needs mkfs.btrfs")
def test_a_snapshot_of_a_subvolume_is_a_copy(tmp_path: Path) -> None:
    """Its files have the births and inode numbers of the original's."""
    done = mounted(SUBVOLUME, tmp_path, "home", "disk")
    if "mount:" in done.stderr:
        pytest.skip(f"this machine mounts no btrfs: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert "is a copy" in done.stderr


def test_what_is_done_to_a_file_keeps_its_birth(tmp_path: Path) -> None:
    file, copy = tmp_path / "file", tmp_path / "link"
    file.write_text("x")
    birth = file_birth(file)
    if not birth:
        pytest.skip("this file system records no times of birth")
    file.write_text("y")
    os.utime(file, ns=(0, 0))
    os.link(file, copy)
    assert file_birth(file.rename(tmp_path / "renamed")) == file_birth(copy) == birth
    assert file_birth(tmp_path / "missing") == {}
