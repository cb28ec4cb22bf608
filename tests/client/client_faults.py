"""Faults put between a client and real parts: the part itself works on, the answer is lost or an error comes first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pyomid.client.database import Database
from pyomid.wiring import open_deployment


class Around:
    """A part with some of its methods replaced: `around.method = lambda real, *args: …`."""

    def __init__(self, real: Any, **methods: Callable[..., Any]) -> None:
        self._real = real
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        method = self._methods.get(name)
        real = getattr(self._real, name)
        if method is None:
            return real
        return lambda *args, **kwargs: method(real, *args, **kwargs)


@contextmanager
def database_with(url: str, **parts_around: dict[str, Callable[..., Any]]) -> Iterator[Database]:
    """A database whose parts named in `parts_around` have some methods replaced. Where those of its store are, commits
    carry no cells: all is written by these methods."""
    parts = open_deployment(url)
    around: dict[str, Any] = {name: Around(getattr(parts, name), **methods) for name, methods in parts_around.items()}
    if "store" in around:
        around["store"].capabilities = replace(parts.store.capabilities, one_step=False)
    with Database(replace(parts, **around), url=url) as database:
        yield database


def failing(error: Exception, *, nth: int = 1, after: bool = False) -> Callable[..., Any]:
    """The n-th call raises `error`: before the real thing happens, or after it did (a lost answer)."""
    calls = 0

    def call(real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls != nth:
            return real(*args, **kwargs)
        if after:
            real(*args, **kwargs)
        raise error

    return call
