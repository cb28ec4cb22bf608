"""What makes a number of HBase's snapshots one back-up: which there are, and the moment that all of them hold.

The manifest lies in a row of PYOMID_META while that table's snapshot is taken, so it goes wherever the snapshots go.
That snapshot is the last: where it is, the back-up is whole.

    monday.5f02c1d9.commits     the commit table
    monday.5f02c1d9.0, ….1      data tables
    monday.manifest             PYOMID_META

The row says before whose back-up of that name is under way, by its *mark*, which is in the names of its snapshots. So
of two at a time the later one takes the name, and the earlier one, which finds the other's mark, has failed: no back-up
has snapshots of two, and none takes away what the other has.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from typing import Final

from pyomid.errors import Corruption, Misuse
from pyomid.storage.hbase.catalog import decode_entry, encode_entry
from pyomid.types import BackupManifest, TableEntry, TableInBackup, TableState

ROW: Final = b"backup/"
"""With the back-up's name behind it."""
QUALIFIER: Final = b"manifest"

_FORMAT: Final = 2
_MARK: Final = b"under way "
_MARK_BYTES: Final = 4
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


def encode(manifest: BackupManifest) -> bytes:
    fields = {name: getattr(manifest, name) for name in BackupManifest.__slots__ if name != "tables"}
    tables = [
        {
            "entry": encode_entry(TableEntry(each.info, TableState.PRESENT, "")).decode(),
            "snapshot": each.snapshot,
            "expired_to": each.expired_to,
        }
        for each in manifest.tables
    ]
    return json.dumps({"format": _FORMAT, **fields, "tables": tables}).encode()


def decode(value: bytes) -> BackupManifest:
    try:
        fields = json.loads(value)
        if fields.pop("format") != _FORMAT:
            raise ValueError("another format")
        tables = tuple(
            TableInBackup(decode_entry(each["entry"].encode()).info, each["snapshot"], each["expired_to"])
            for each in fields.pop("tables")
        )
        return BackupManifest(**fields, tables=tables)
    except (ValueError, KeyError, TypeError) as error:
        raise Corruption(f"the manifest of a back-up cannot be read: {error!r}: {value[:80]!r}") from error


def check_name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Misuse(
            f"{name!r} names no back-up over HBase: it is a word of letters, digits, '_' and '-', up to 100, with "
            "which the names of its snapshots begin"
        )
    return name


def new_mark() -> str:
    """Of one back-up that is taken, and of no other."""
    return secrets.token_hex(_MARK_BYTES)


def under_way(mark: str) -> bytes:
    """What the row holds until the manifest."""
    return _MARK + mark.encode()


def manifest_snapshot(name: str) -> str:
    return f"{name}.manifest"


def commits_snapshot(name: str, mark: str) -> str:
    return f"{name}.{mark}.commits"


def data_snapshot(name: str, mark: str, number: int) -> str:
    return f"{name}.{mark}.{number}"


def is_of(snapshot: str, name: str, mark: str) -> bool:
    """Whether the snapshot is one of the back-up that has this mark."""
    return snapshot.startswith(f"{name}.{mark}.")


def left_of(snapshots: Sequence[str], name: str) -> list[str]:
    """What unfinished back-ups of that name left, in the order in which it may go. The commit table's snapshot, which
    is the first and goes last, shows that it is ours: an operator's own may begin with the same word."""
    begun = re.compile(rf"{re.escape(name)}\.([0-9a-f]{{{2 * _MARK_BYTES}}})\.commits")
    marks = [found[1] for each in snapshots if (found := begun.fullmatch(each))]
    return sorted(each for each in snapshots if any(is_of(each, name, mark) for mark in marks))


def is_whole(snapshots: list[str], name: str) -> bool:
    return manifest_snapshot(name) in snapshots
