"""A progress bar on the terminal for commands that may take long. It uses tqdm, if that is installed (extra
pyomid[shell])."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyomid.types import Progress


@contextmanager
def progress_bar(unit: str) -> Iterator[Progress | None]:
    """Yield a `Progress` function that shows a bar for each table or file. Yield None if standard error is not a
    terminal, or if tqdm is not installed."""
    if not sys.stderr.isatty():
        yield None
        return
    try:
        from tqdm import tqdm
    except ImportError:
        yield None
        return
    what, bar = "", tqdm(disable=True)

    def show(now: str, done: int, total: int | None) -> None:
        nonlocal what, bar
        if now != what:
            bar.close()
            what, bar = now, _bar(tqdm, now, total, unit)
        bar.update(done - bar.n)

    try:
        yield show
    finally:
        bar.close()


def _bar(tqdm: Any, what: str, total: int | None, unit: str) -> Any:
    """Return a bar that disappears when it is closed, because the command's report follows on standard output."""
    in_bytes = unit == "B"
    shown = unit if in_bytes else f" {unit}"
    scale = {"unit": shown, "unit_scale": in_bytes}
    return tqdm(desc=what, total=total, leave=False, file=sys.stderr, dynamic_ncols=True, **scale)
