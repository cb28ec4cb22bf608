"""Carries pyomid's errors through Spark, which turns every exception of a Python worker into text.

The worker puts the error's stable code and values into the message; `original_error` parses them in the driver:

    [OMID-CONFLICT {"commit_ts": 150}] transaction 100 aborted: another transaction committed a row …
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
    """Context manager that encodes pyomid's errors into their messages, for code that Spark runs in other processes."""
    try:
        yield
    except OmidError as error:
        if _CODED.match(error.message):
            raise
        coded = type(error)(coded_message(error), **error.values)
        raise coded.with_traceback(error.__traceback__) from error.__cause__  # one message, with the original frames


def coded_message(error: OmidError) -> str:
    numbers = {name: value for name, value in error.values.items() if type(value) in (int, str)}
    shown = f" {json.dumps(numbers)}" if numbers else ""
    return f"[{error.code}{shown}] {error.message}"


def original_error(error: BaseException) -> OmidError | None:
    """Return the pyomid error that a Spark exception contains, or None if the exception contains no pyomid error."""
    if isinstance(error, OmidError):
        return error
    text = str(error)
    for found in _CODED.finditer(text):
        values, at = _numbers(text, found.end())
        if text.startswith("] ", at):
            return by_code(found[1])(text[at + 2 :].partition("\n")[0], **values)
    return None


def _numbers(text: str, at: int) -> tuple[dict[str, Any], int]:
    """Return the values that follow a code, if any, and where they end. A string value may contain brackets."""
    try:
        return _JSON.raw_decode(text, at + 1) if text.startswith(" {", at) else ({}, at)
    except ValueError:  # some other text that looks like a code
        return {}, at


@contextmanager
def original_errors() -> Iterator[None]:
    """Context manager for Spark actions. If Spark reports a pyomid error as text, the block raises the pyomid error
    itself. The traceback omits the frames of the JVM and of the workers; Spark's exception is available as
    `__context__`."""
    try:
        yield
    except OmidError:
        raise
    except Exception as error:
        found = original_error(error)
        if found is None:
            raise
        raise found from None
