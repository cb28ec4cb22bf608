"""pyomid's errors through Spark, which turns every exception of a Python worker into text.

On the way out a worker puts the stable code and the numbers into the message; `original_error` finds them again:

    [OMID-CONFLICT {"commit_ts": 150}] transaction 100 aborted: another transaction committed a cell …
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyomid.errors import OmidError, by_code

_CODED: Final = re.compile(r"\[(OMID[A-Z-]*)( \{[^\n]*?\})?\] ([^\n]*)")


@contextmanager
def coded_errors() -> Iterator[None]:
    """Around everything that Spark calls in another process."""
    try:
        yield
    except OmidError as error:
        if _CODED.match(error.message):
            raise
        raise type(error)(coded_message(error), **error.values) from error


def coded_message(error: OmidError) -> str:
    numbers = {name: value for name, value in error.values.items() if type(value) in (int, str)}
    shown = f" {json.dumps(numbers)}" if numbers else ""
    return f"[{error.code}{shown}] {error.message}"


def original_error(error: BaseException) -> OmidError | None:
    """The pyomid error inside an exception that Spark raised; None where there is none."""
    if isinstance(error, OmidError):
        return error
    found = _CODED.search(str(error))
    if found is None:
        return None
    code, numbers, message = found.groups()
    values = json.loads(numbers) if numbers else {}
    return by_code(code)(message, **values)


@contextmanager
def original_errors() -> Iterator[None]:
    """A context manager for Spark actions: raises the pyomid error that Spark shows as text, `from` Spark's error."""
    try:
        yield
    except OmidError:
        raise
    except Exception as error:
        found = original_error(error)
        if found is None:
            raise
        raise found from error
