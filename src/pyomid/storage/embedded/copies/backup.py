"""Back-ups of a folder: a copy of one moment, taken beside writers, and the folder that is made of one.

    writers of the data wait ─► state of `data` held ─► state of `commits` held ─► log read ─► commits unchanged?
        no:  both states are let go, the writers go on, and it is tried again
        yes: the writers go on ─► LMDB copies both states ─► the log's rows go into the copied commits ─► described

An incremental back-up has in place of the copied data what differs from the back-up before it (`difference`).

The three are of one moment: while the writers wait no cell and no shadow cell is written, and the log of commits only
grows, by commits whose cells are all there, as long as nothing is committed to LMDB's part of the commit table. So the
copy is what a loss of power at that moment would have left, and its first TSO recovers as from that (decision 0060 has
the interleavings). It is another database: it has no id until its first TSO gives it one.

A back-up has no file LAYOUT, so it is not opened by mistake; a folder that is being written has a file UNFINISHED,
which is removed last.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pyomid.crashpoints import crash_point
from pyomid.errors import Corruption, Misuse, Unavailable
from pyomid.owned_files import LAYOUT_FILE, check_owner, make_folder, open_own, sync_folder
from pyomid.storage.embedded.commit_log.compacted import CompactedCommits
from pyomid.storage.embedded.commit_log.index import LOG_FILES, rows_of
from pyomid.storage.embedded.commit_log.segment import Rows, parse_segment
from pyomid.storage.embedded.copies.description import (
    CHANGES_FILE,
    DATA_FILE,
    LINKS_MAX,
    Link,
    chain_of,
    check_file,
    check_sum,
    describe,
    file_names,
    file_sum,
)
from pyomid.storage.embedded.copies.difference import apply_changes, write_changes
from pyomid.storage.embedded.environment import (
    Environment,
    HeldState,
    Transaction,
    open_environment,
    release,
)
from pyomid.storage.embedded.layout import (
    BACKUP_FILE,
    ENVIRONMENTS,
    LOCK_FILE,
    UNFINISHED_FILE,
    UNFINISHED_SUFFIX,
    is_there,
    locked,
    make_database,
    open_commits,
    open_data,
    open_folder,
    unusable,
)
from pyomid.storage.embedded.leader_state import forget_identity, read_identity
from pyomid.storage.embedded.writer_turn import WRITER_FILE
from pyomid.types import Backup

_HOLD_S: Final = 30.0
"""A look takes milliseconds, and a busy TSO commits to LMDB some times a second: more than a few looks are rare."""
_DAMAGED_LOOKS: Final = 3
"""A log that is read while two records are appended may show the second without the first; damage shows each time."""
_COPY_BYTES: Final = 1 << 20
_MARK: Final = "pyomid: being written\n"


def back_up(
    folder: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    snapshot_ts: int,
    since: str | os.PathLike[str] | None = None,
) -> Backup:
    """Copies the database in `folder` as of one moment into `destination`, an absent or empty folder; with `since`, a
    back-up of it, what changed since that.

    Durable on return. `snapshot_ts`: a start that was handed out before, so that all commits below it are durable.
    """
    source, path = open_folder(folder, create=False), Path(destination).absolute()
    with ExitStack() as last_first:
        data = open_data(source)
        last_first.callback(release, data)
        commits = open_commits(source, writable=False)
        last_first.callback(release, commits)
        chain = [] if since is None else _whole_chain(Path(since).resolve(), commits)
        last_first.enter_context(_being_written(path, shared=False))
        crash_point("storage.backup.begun")
        database_id, records = _copy(_Moment(source / "commits", data, commits), path, chain)
        crash_point("storage.backup.completed")
        with _mapped_errors(path):
            files = {name: file_sum(path / name) for name in file_names(is_whole=not chain)}
        made = Backup(
            folder=os.fspath(source),
            database_id=database_id.hex(),
            snapshot_ts=snapshot_ts,
            taken=datetime.now(UTC).isoformat(timespec="seconds"),
            size_bytes=sum(size for size, _ in files.values()),
            since=os.fspath(chain[-1].folder) if chain else None,
        )
        with _mapped_errors(path):
            describe(path, made, files, chain[-1] if chain else None, records)
        crash_point("storage.backup.described")
    with suppress(OSError):
        os.unlink(path / LOCK_FILE)
    return made


def _whole_chain(since: Path, commits: Environment) -> list[Link]:
    """The back-ups that the next one goes on from: of this database, none missing, each as it was written. So what
    cannot be restored is not gone on from."""
    chain = chain_of(since)
    found, known = read_identity(commits).hex(), chain[-1].backup.database_id
    if found != known:
        raise Misuse(
            f"{since} is of another database, {known} in place of {found}: begin with a whole back-up, without since",
            folder=os.fspath(since),
        )
    if len(chain) >= LINKS_MAX:
        raise Misuse(
            f"{since} goes on from {len(chain) - 1} other back-ups, and none goes on from more: begin with a whole "
            "one, without since",
            folder=os.fspath(since),
        )
    for name in file_names(is_whole=True)[:1]:
        check_file(chain[0], name)
    for link in chain[1:]:
        check_file(link, f"data/{CHANGES_FILE}")
    return chain


def restore(backup: str | os.PathLike[str], folder: str | os.PathLike[str], *, shared: bool = False) -> Backup:
    """Makes a database of a back-up, in an absent or empty folder. Durable on return.

    `Misuse` unless the back-up is whole and so is each one that it goes on from, `Corruption` if their files are not as
    they were written.
    """
    path = Path(folder).absolute()
    chain = chain_of(Path(backup).absolute())
    with _being_written(path, shared=shared):
        crash_point("storage.restore.begun")
        for name, link in zip(ENVIRONMENTS, (chain[0], chain[-1]), strict=True):
            make_folder(path / name, shared=shared)
            file = f"{name}/{DATA_FILE}"
            found = _copied(link.folder / file, path / file, shared=shared)
            check_sum(link.folder / file, found, link.files[file])
        crash_point("storage.restore.copied")
        with _mapped_errors(path):
            _apply(chain[1:], path)
        crash_point("storage.restore.applied")
        with _mapped_errors(path), locked(path / LOCK_FILE, shared=shared):
            make_database(path, shared=shared, version=chain[-1].layout)
        crash_point("storage.restore.made")
    return chain[-1].backup


def _apply(later: list[Link], path: Path) -> None:
    """What the later back-ups changed, one after the other."""
    if not later:
        return
    data = open_data(path)
    try:
        for link in later:
            check_file(link, f"data/{CHANGES_FILE}")
            apply_changes(data, link.folder / "data" / CHANGES_FILE)
            held = HeldState(data)
            try:
                held.hold()
                found = held.counts()
            finally:
                held.end()
            if found != link.records:
                raise Corruption(f"{link.folder} gives {found} records in place of {link.records}")
    finally:
        release(data)


# ---------------------------------------------------------------- one moment


class _Moment:
    """Data, commits and log, as they were at one moment; each look ends what an earlier one held."""

    def __init__(self, log_folder: Path, data: Environment, commits: Environment) -> None:
        self._log_folder = log_folder
        self._environments = data, commits
        self._held: list[HeldState] = []
        self._log: list[bytes | None] = []
        self._is_one = False
        self._looking = threading.Lock()
        self._is_over = False

    def look(self) -> Rows:
        """Holds one moment; returns the rows of the log. `Unavailable` if there was none for long."""
        give_up_s, damaged = time.monotonic() + _HOLD_S, 0
        while True:
            self._while_writers_wait(self._look)
            try:
                rows = rows_of([self._parsed(name, data) for name, data in zip(LOG_FILES, self._log, strict=True)])
            except Corruption:
                damaged += 1
                if damaged == _DAMAGED_LOOKS:
                    raise
                continue
            if self._is_one:
                return rows
            if time.monotonic() > give_up_s:
                raise Unavailable(f"{self._log_folder} changed during every look for {_HOLD_S:.0f} s: back up later")

    def _while_writers_wait(self, work: Callable[[Transaction], None]) -> None:
        """Inside a write transaction of the data, which writes nothing: no cell and no shadow cell is written."""
        self._environments[0].write(work)

    def _look(self, transaction: Transaction) -> None:
        """Holds nothing that would stay held: another thread may perform this after the back-up was interrupted."""
        with self._looking:
            try:
                if not self._is_over:
                    self._hold()
            finally:
                if self._is_over:
                    self._end()

    def _hold(self) -> None:
        """The commits first, then the log: what leaves the log meanwhile is committed to LMDB before, which is
        noticed."""
        self._end()
        data, commits = self._held = [HeldState(environment) for environment in self._environments]
        data.hold(in_write=True)
        commits.hold()
        crash_point("storage.backup.states_held")
        self._log = [_content(self._log_folder / name) for name in LOG_FILES]
        self._is_one = commits.is_newest()

    def _parsed(self, name: str, data: bytes | None) -> tuple[int, list[Rows]]:
        return (0, []) if data is None else parse_segment(data, self._log_folder / name, is_at_rest=True)

    def copy_to(self, path: Path, chain: list[Link]) -> list[int]:
        """The small one first: what is held longer costs the source disk where others write. Returns how many records
        the databases of the data have."""
        data, commits = self._held
        for name in ENVIRONMENTS:
            make_folder(path / name, shared=False)
        commits.copy_to(path / "commits")
        os.chmod(path / "commits" / DATA_FILE, 0o600)
        commits.end()
        records = data.counts()
        if chain:
            write_changes(data, chain, path / "data")
        else:
            data.copy_to(path / "data")
            os.chmod(path / "data" / DATA_FILE, 0o600)
        data.end()
        return records

    def end_for_good(self) -> None:
        """Nothing is held on return, nor by a look that has not begun. A look that goes on when this is interrupted
        ends what it holds."""
        self._is_over = True
        with self._looking:
            self._end()

    def _end(self) -> None:
        for held in self._held:
            held.end()


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _copy(moment: _Moment, path: Path, chain: list[Link]) -> tuple[bytes, list[int]]:
    """Copies the moment, whole and durable, or what changed since the chain; returns the id of the database that it is
    of, and how many records its data has."""
    try:
        rows = moment.look()
        crash_point("storage.backup.held")
        with _mapped_errors(path):
            records = moment.copy_to(path, chain)
    finally:
        moment.end_for_good()
    crash_point("storage.backup.copied")
    commits = open_environment(path / "commits", ENVIRONMENTS["commits"], writable=True, many_writers=False)
    try:
        CompactedCommits(commits).store(rows)  # as the next TSO would, had the source ended here
        database_id = forget_identity(commits)
    finally:
        release(commits)
    with _mapped_errors(path):
        for name in ("lock.mdb", WRITER_FILE):
            os.unlink(path / "commits" / name)
        for name in file_names(is_whole=not chain):
            _sync(path / name)
            sync_folder((path / name).parent)
    return database_id, records


# ---------------------------------------------------------------- folders that are being written


@contextmanager
def _being_written(path: Path, *, shared: bool) -> Iterator[None]:
    """The folder, absent or empty before, is whole at the end. What an error leaves is removed; what a kill leaves is
    refused by everybody, until the next one who writes there removes it. Without the mark it may be in use."""
    is_new = not is_there(path)
    with _mapped_errors(path):
        make_folder(path, shared=shared)
        check_owner(path, shared=False)
        _is_left(path)  # before anything of ours is in a folder of somebody else's
        with locked(path / LOCK_FILE, shared=shared):
            mark = _marked(path)
    try:
        yield
    except BaseException:
        with suppress(OSError):
            _clear(path)
            os.unlink(path / LOCK_FILE)
            os.unlink(path / UNFINISHED_FILE)
            if is_new:
                path.rmdir()
        raise
    else:
        with _mapped_errors(path):
            os.unlink(path / UNFINISHED_FILE)
            sync_folder(path)
            sync_folder(path.parent)
    finally:
        os.close(mark)


def _marked(path: Path) -> int:
    """The mark's file, locked and durable, in a folder without anything else. Under the folder's lock."""
    is_left = _is_left(path)
    file = open_own(path / UNFINISHED_FILE, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Misuse(f"another process writes into {path} just now", folder=str(path)) from None
        if is_left:
            _clear(path)
        os.pwrite(file, _MARK.encode(), 0)
        os.fsync(file)
        sync_folder(path)
    except BaseException:
        os.close(file)
        raise
    return file


def _is_left(path: Path) -> bool:
    """Whether a kill left the folder unfinished; `Misuse` where it is neither that nor empty."""
    is_left = is_there(path / UNFINISHED_FILE)
    if not is_left and (there := sorted(set(os.listdir(path)) - {LOCK_FILE})):
        raise Misuse(f"{path} is not empty ({', '.join(there[:3])}): name a new folder", folder=str(path))
    return is_left


def _clear(path: Path) -> None:
    """What makes it a database or a back-up goes first."""
    for name in (LAYOUT_FILE, BACKUP_FILE):
        for file in (path / name, (path / name).with_suffix(UNFINISHED_SUFFIX)):
            with suppress(FileNotFoundError):
                os.unlink(file)
    for name in ENVIRONMENTS:
        with suppress(FileNotFoundError):
            shutil.rmtree(path / name)


@contextmanager
def _mapped_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unusable(path, error) from error


# ---------------------------------------------------------------- files


def _copied(source: Path, target: Path, *, shared: bool) -> tuple[int, str]:
    """Copies durably; size and checksum of what was read."""
    digest, size = hashlib.sha256(), 0
    if not is_there(source):
        raise Corruption(f"{source} is missing", folder=str(source.parent.parent))
    with _mapped_errors(target):
        with (
            open(source, "rb") as read,
            open(open_own(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, shared=shared), "wb") as written,
        ):
            while part := read.read(_COPY_BYTES):
                digest.update(part)
                size += written.write(part)
            written.flush()
            os.fsync(written.fileno())
        sync_folder(target.parent)
    return size, digest.hexdigest()


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
