"""The tree of errors, split by what the caller should do about one.

    ConflictError     run the transaction again
    Unavailable       try the request again
    AlreadyCommitted  nothing: the work under this id is done
    ExpectationFailed a value is not what the program expected: read again, decide anew
    OutcomeUnknown    the commit may have happened: look before repeating
    Corruption        stop: stored bytes are not what was written
    Misuse            fix the program (also a ValueError; MisuseType is also a TypeError)

Every error pickles with its message and values, so that it survives the way from a Spark worker to the
driver; `code` is stable and is what `pyomid.spark` finds again in an error that Spark has turned to text.
"""

from __future__ import annotations

from typing import Any, ClassVar


class OmidError(Exception):
    """Root of everything pyomid raises on purpose."""

    code: ClassVar[str] = "OMID"

    def __init__(self, message: str, **values: Any) -> None:
        super().__init__(message)
        self.message = message
        self.values = values

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.values))


def _rebuild(kind: type[OmidError], message: str, values: dict[str, Any]) -> OmidError:
    return kind(message, **values)


class ConflictError(OmidError):
    """Another transaction won: run this one again from its beginning.

    `values["commit_ts"]`, where present, is the commit that caused it: the next begin may wait for it.
    `values["wrote"]`, where present, has keys of some rows that this transaction wrote, by table: the conflict is in
    one of the tables, and in one of the rows where those are all.
    """

    code = "OMID-CONFLICT"


class SnapshotTooOld(ConflictError):
    """The snapshot is at or below the published low watermark: versions it needs may be gone."""

    code = "OMID-SNAPSHOT-TOO-OLD"


class Unavailable(OmidError):
    """A server or store did not answer or cannot serve now; nothing of the request took effect."""

    code = "OMID-UNAVAILABLE"


class StoreFull(Unavailable):
    """The disk, or the store's map, has no room left: what was durable stays, the write did not happen."""

    code = "OMID-STORE-FULL"


class Deposed(Unavailable):
    """Another TSO holds a newer epoch. A TSO that learns this about itself serves no more."""

    code = "OMID-DEPOSED"


class AlreadyCommitted(OmidError):
    """Nothing to do: a transaction under this durable id committed before; `values["start_ts"]` is its start."""

    code = "OMID-ALREADY-COMMITTED"


class ExpectationFailed(OmidError):
    """`put(..., expect=)` found another value: nothing was written, and the transaction may go on.

    `values` has `table`, `row`, `column`, and the bytes or None of `expected` and `found`.
    """

    code = "OMID-EXPECTATION-FAILED"


class OutcomeUnknown(OmidError):
    """The commit may have happened; `values["start_ts"]` says which. Look before repeating."""

    code = "OMID-OUTCOME-UNKNOWN"


class Corruption(OmidError):
    """Stored bytes fail their checksum or their grammar."""

    code = "OMID-CORRUPTION"


class Misuse(OmidError, ValueError):
    """The program broke a rule; the message names the value and the rule."""

    code = "OMID-MISUSE"


class MisuseType(Misuse, TypeError):
    """A value of the wrong type."""

    code = "OMID-MISUSE-TYPE"


class UnknownTable(Misuse, LookupError):
    """No such table in the catalog."""

    code = "OMID-UNKNOWN-TABLE"


class TransactionEnded(Misuse):
    """The transaction was committed or rolled back already, or is rollback-only."""

    code = "OMID-TRANSACTION-ENDED"


def by_code(code: str) -> type[OmidError]:
    """The class that carries `code`; `OmidError` for a code of a later version."""
    pending: list[type[OmidError]] = [OmidError]
    while pending:
        kind = pending.pop()
        if kind.code == code:
            return kind
        pending.extend(kind.__subclasses__())
    return OmidError
