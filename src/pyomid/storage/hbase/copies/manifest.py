"""The manifest, which makes several HBase snapshots one backup: their names, and the moment that they contain.

The manifest is in a row of PYOMID_META while that table's snapshot is taken, so it is exported with the snapshots. That
snapshot is the last one: if it exists, the backup is complete.

    monday.5f02c1d9.commits     the commit table
    monday.5f02c1d9.0, ….1      data tables
    monday.manifest             PYOMID_META

Before that, the row holds the *mark* of the backup in progress, which is part of its snapshots' names. So of two
concurrent backups the later one takes the name, and the earlier one fails when it finds the other's mark: no backup
mixes snapshots of two, and none deletes the other's.
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
"""Followed by the backup's name."""
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
        raise Corruption(f"the manifest of a backup is malformed: {error!r}: {value[:80]!r}") from error


def check_name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Misuse(
            f"invalid backup name {name!r}: over HBase it consists of up to 100 letters, digits, '_' and '-', and "
            "begins with a letter or digit; its snapshots' names begin with it"
        )
    return name


def new_mark() -> str:
    """Return a random mark for one backup in progress."""
    return secrets.token_hex(_MARK_BYTES)


def under_way(mark: str) -> bytes:
    """Return the row's value until it holds the manifest."""
    return _MARK + mark.encode()


def manifest_snapshot(name: str) -> str:
    return f"{name}.manifest"


def commits_snapshot(name: str, mark: str) -> str:
    return f"{name}.{mark}.commits"


def data_snapshot(name: str, mark: str, number: int) -> str:
    return f"{name}.{mark}.{number}"


def is_of(snapshot: str, name: str, mark: str) -> bool:
    """Return whether the snapshot belongs to the backup with this mark."""
    return snapshot.startswith(f"{name}.{mark}.")


def left_of(snapshots: Sequence[str], name: str) -> list[str]:
    """Return the snapshots of unfinished backups of that name, in the order in which to delete them. The commit
    table's snapshot is taken first and deleted last; without it, a snapshot of such a name may be an operator's own."""
    begun = re.compile(rf"{re.escape(name)}\.([0-9a-f]{{{2 * _MARK_BYTES}}})\.commits")
    marks = [found[1] for each in snapshots if (found := begun.fullmatch(each))]
    return sorted(each for each in snapshots if any(is_of(each, name, mark) for mark in marks))


def is_whole(snapshots: list[str], name: str) -> bool:
    return manifest_snapshot(name) in snapshots
