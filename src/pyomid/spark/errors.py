"""pyomid's errors through Spark, which turns every exception of a Python worker into text.

On the way out a worker puts the stable code and the numbers into the message; `original_error` finds them again:

    [OMID-CONFLICT {"commit_ts": 150}] transaction 100 aborted: another transaction committed a cell …
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pyomid.errors import OmidError, by_code

_CODED: Final = re.compile(r"\[(OMID[A-Z-]*)(?=\] | \{)")
_JSON: Final = json.JSONDecoder()


@contextmanager
def coded_errors() -> Iterator[None]:
    """Around everything that Spark calls in another process."""
    try:
        yield
    except OmidError as error:
        if _CODED.match(error.message):
            raise
        coded = type(error)(coded_message(error), **error.values)
        raise coded.with_traceback(error.__traceback__) from error.__cause__  # the sentence once, its frames with it


def coded_message(error: OmidError) -> str:
    numbers = {name: value for name, value in error.values.items() if type(value) in (int, str)}
    shown = f" {json.dumps(numbers)}" if numbers else ""
    return f"[{error.code}{shown}] {error.message}"


def original_error(error: BaseException) -> OmidError | None:
    """The pyomid error inside an exception that Spark raised; None where there is none."""
    if isinstance(error, OmidError):
        return error
    text = str(error)
    for found in _CODED.finditer(text):
        values, at = _numbers(text, found.end())
        if text.startswith("] ", at):
            return by_code(found[1])(text[at + 2 :].partition("\n")[0], **values)
    return None


def _numbers(text: str, at: int) -> tuple[dict[str, Any], int]:
    """The values that follow a code, if any do, and where they end. A text among them may hold any brackets."""
    try:
        return _JSON.raw_decode(text, at + 1) if text.startswith(" {", at) else ({}, at)
    except ValueError:  # some other text that looks like a code
        return {}, at


@contextmanager
def original_errors() -> Iterator[None]:
    """A context manager for Spark actions: raises the pyomid error that Spark shows as text, without the frames of JVM
    and workers: Spark's error is its `__context__`, and is not printed with it."""
    try:
        yield
    except OmidError:
        raise
    except Exception as error:
        found = original_error(error)
        if found is None:
            raise
        raise found from None
