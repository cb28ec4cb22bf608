"""The error classes; each class calls for a different reaction of the caller.

    ConflictError     rerun the transaction
    Unavailable       retry the request
    AlreadyCommitted  do nothing: the work under this id has already committed
    ExpectationFailed read and decide again: a value is not the expected one
    OutcomeUnknown    check before repeating: the commit may have happened
    Corruption        stop: stored bytes differ from the bytes that were written
    Misuse            fix the program or its arguments (also a ValueError; MisuseType is also a TypeError)

Every error, even one of a program's own subclass, can be pickled and copied with its message, values, attributes and
notes; a Spark worker pickles errors to send them to the driver. `code` is stable: `pyomid.spark` uses it to recognize
an error that Spark has turned into text.
"""

from __future__ import annotations

import copyreg
import pickle
from typing import Any, ClassVar, Self


class OmidError(Exception):
    """Base class of all errors that pyomid raises."""

    code: ClassVar[str] = "OMID"

    message: str
    values: dict[str, Any]

    def __new__(cls, *arguments: Any, **values: Any) -> Self:
        """Set `message` and `values`, even if a subclass's `__init__` does not call `OmidError.__init__`."""
        error = super().__new__(cls, *arguments)
        error.message = str(arguments[0]) if arguments else ""
        error.values = values
        return error

    def __init__(self, message: str, **values: Any) -> None:
        super().__init__(message)
        self.message = message
        self.values = values

    def __str__(self) -> str:
        return str(self.message)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the error; a value that cannot be pickled (a function, a handle) becomes its `repr`."""
        values = {name: value if _is_picklable(value) else repr(value) for name, value in self.values.items()}
        return _rebuild, self._made_by(), {**self._state(), "values": values}

    def __copy__(self) -> OmidError:
        error = _rebuild(*self._made_by())
        error.__setstate__(self._state())
        return error

    def _made_by(self) -> tuple[type[OmidError], tuple[Any, ...]]:
        """Return the class, and the arguments for its base class in C."""
        arguments: tuple[Any, ...] = super().__reduce__()[1]  # type: ignore[assignment]
        return type(self), arguments

    def _state(self) -> dict[str, Any]:
        """Return all attributes, including notes and a subclass's slots."""
        slots: list[str] = copyreg._slotnames(type(self))  # type: ignore[attr-defined]
        return {**vars(self), **{name: getattr(self, name) for name in slots if hasattr(self, name)}}


def _rebuild(kind: type[OmidError], arguments: tuple[Any, ...]) -> OmidError:
    """Return an error without its attributes. A subclass's `__init__`, whose parameters are unknown, is not called."""
    builtin = next(base for base in kind.__mro__ if base.__module__ == "builtins")
    error: OmidError = builtin.__new__(kind, *arguments)
    builtin.__init__(error, *arguments)  # type: ignore[misc]  # of the class whose `__new__` made it
    return error


def _is_picklable(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # a value's own code may raise anything
        return False
    return True


class ConflictError(OmidError):
    """Another transaction won the conflict: rerun this transaction from its beginning.

    `values["commit_ts"]`, if present, is the timestamp of the commit that caused the conflict. Pass this timestamp as
    `not_before` to the next `begin`. `values["wrote"]` and `values["claimed"]`, if present, map table names to keys of
    rows that this transaction wrote or claimed. Each of the two mappings has at most 5 tables, and at most 5 keys for
    each table. If both mappings are complete, they include the row or table that caused the conflict. For a table with
    a schema, each key is the value of the key column, or a tuple if the key has several columns.
    """

    code = "OMID-CONFLICT"


class SnapshotTooOld(ConflictError):
    """The snapshot can no longer be read. One cause is that the published low watermark W has reached the snapshot:
    compaction may then have deleted versions that the snapshot needs. The other cause is that the table was dropped,
    even if a new table has the same name."""

    code = "OMID-SNAPSHOT-TOO-OLD"


class Unavailable(OmidError):
    """A server or store did not reply, or cannot serve requests now. The request had no effect."""

    code = "OMID-UNAVAILABLE"


class StoreFull(Unavailable):
    """The disk, or the memory map of the folder's data file, is full. The write did not happen, and durable data is
    intact."""

    code = "OMID-STORE-FULL"


class Deposed(Unavailable):
    """Another TSO holds a newer epoch. A TSO that gets this error stops serving."""

    code = "OMID-DEPOSED"


class AlreadyCommitted(OmidError):
    """A transaction with the same durable id has already committed. Do not rerun this transaction. `values["start_ts"]`
    is the start timestamp of the committed transaction."""

    code = "OMID-ALREADY-COMMITTED"


class ExpectationFailed(OmidError):
    """A stored value differs from the value that `put(..., expect=)` expects. Nothing was written, and the transaction
    may continue.

    `values` has the keys `table`, `row`, `column`, `expected` and `found`. `column`, `expected` and `found` are bytes;
    after `TypedTable.put`, `column` is a name, and `expected` and `found` are Python values. If the table has a schema,
    `row` is the value of the key column, or a tuple if the key has several columns.
    """

    code = "OMID-EXPECTATION-FAILED"


class OutcomeUnknown(OmidError):
    """The transaction that started at `values["start_ts"]` may have committed. Check whether it committed before you
    rerun it."""

    code = "OMID-OUTCOME-UNKNOWN"


class Corruption(OmidError):
    """Stored bytes fail their checksum or are malformed."""

    code = "OMID-CORRUPTION"


class Misuse(OmidError, ValueError):
    """A call broke a rule of the API. The message names the rule and the value that broke it."""

    code = "OMID-MISUSE"


class MisuseType(Misuse, TypeError):
    """A value has the wrong type."""

    code = "OMID-MISUSE-TYPE"


class UnknownTable(Misuse, LookupError):
    """The catalog has no table with this name."""

    code = "OMID-UNKNOWN-TABLE"


class FolderMissing(Misuse, LookupError):
    """The folder `values["folder"]` holds no database."""

    code = "OMID-FOLDER-MISSING"


class ExtraMissing(Misuse, ModuleNotFoundError):
    """A required package is not installed. `values["extra"]` names the extra of pyomid that installs the package."""

    code = "OMID-EXTRA-MISSING"


class TransactionEnded(Misuse):
    """The transaction has already committed or rolled back, or it is rollback-only."""

    code = "OMID-TRANSACTION-ENDED"


def extra_missing(what: str, extra: str) -> ExtraMissing:
    """Return the error for a missing package that only `extra` installs. `what` says what needs which package."""
    return ExtraMissing(f"{what}, which is not installed: pip install 'pyomid[{extra}]'", extra=extra)


def by_code(code: str) -> type[OmidError]:
    """Return the class with this `code`; `OmidError` if no class has it, because it is a later version's code."""
    pending: list[type[OmidError]] = [OmidError]
    while pending:
        kind = pending.pop()
        if kind.code == code:
            return kind
        pending.extend(kind.__subclasses__())
    return OmidError
