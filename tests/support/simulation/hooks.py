"""One named function or method of the product, replaced: how a rule is taken out without a switch in the product.

    Hook("protocol.reading:check_life", lambda original, table, snapshot, generation: nothing())
    Hook("omid.oracle.outgoing:StoreRequests.check_epoch", lambda original, store, epoch: None)

What stands in its place is called with the original and then as the original would be. A simulation's build puts
hooks into modules of its own (`build`); `installed` puts them into the product, for tests of shipped code.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, coroutine
from typing import Any

from pyomid.errors import Misuse

Replacement = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Hook:
    """`place`: module below `pyomid`, a colon, and the function's or method's name as Python qualifies it."""

    place: str
    instead: Replacement

    @property
    def module(self) -> str:
        return self.place.partition(":")[0]

    def put_into(self, module: ModuleType) -> tuple[Any, Any]:
        """(what stood there, what stands there now); `Misuse` where the name is gone: the mutant has rotted."""
        *path, name = self.place.partition(":")[2].split(".")
        holder: Any = module
        for each in path:
            holder = vars(holder).get(each)
            if not isinstance(holder, type):
                raise Misuse(f"{self.place} names nothing: there is no class {each}")
        original = vars(holder).get(name)
        replacement = _wrapped(original, self.instead)
        if replacement is None:
            raise Misuse(f"{self.place} names nothing: there is no function or method {name!r}")
        setattr(holder, name, replacement)
        return original, replacement

    def take_out_of(self, module: ModuleType, original: Any) -> None:
        *path, name = self.place.partition(":")[2].split(".")
        holder = functools.reduce(getattr, path, module)
        setattr(holder, name, original)


def _wrapped(original: Any, instead: Replacement) -> Any:
    """Of the same kind; None for what is no function, method or property."""
    match original:
        case property():
            return property(_wrapped(original.fget, instead), original.fset)
        case staticmethod():
            return staticmethod(_wrapped(original.__func__, instead))
        case classmethod():
            return classmethod(_wrapped(original.__func__, instead))
    if not callable(original) or isinstance(original, type):
        return None

    @functools.wraps(original)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        return instead(original, *arguments, **named)

    return wrapper


@contextmanager
def installed(hooks: Sequence[Hook]) -> Iterator[None]:
    """In the product's own modules, and wherever the name is imported, now or meanwhile."""
    put: list[tuple[Hook, ModuleType, Any, Any]] = []
    try:
        for hook in hooks:
            module = importlib.import_module(f"pyomid.{hook.module}")
            original, replacement = hook.put_into(module)
            put.append((hook, module, original, replacement))
            _replace_everywhere(original, replacement)
        yield
    finally:
        for hook, module, original, replacement in reversed(put):
            hook.take_out_of(module, original)
            _replace_everywhere(replacement, original)


def _replace_everywhere(old: Any, new: Any) -> None:
    for module in list(sys.modules.values()):
        names = [name for name, value in list(getattr(module, "__dict__", {}).items()) if value is old]
        for name in names:
            setattr(module, name, new)


# ---------------------------------------------------------------- what may stand in its place


def answers(value: Any) -> Replacement:
    """The function does nothing and answers `value`."""
    return lambda original, *_, **__: value


@coroutine
def nothing(*_: Any, **__: Any) -> Generator[Any, Any, None]:
    """The generator does nothing."""
    return
    yield


def without_step(kind: str, answer: Any = None) -> Replacement:
    """The generator goes on as if each of its steps of this class had been done and answered so."""

    def left_out(step: Any) -> Generator[Any, Any, Any]:
        return answer
        yield

    return with_step(kind, left_out)


def with_step(kind: str, by: Callable[[Any], Generator[Any, Any, Any]]) -> Replacement:
    """In place of each step of this class the generator yields what `by(step)` does, and is sent its result."""

    def instead(original: Any, *arguments: Any, **named: Any) -> Generator[Any, Any, Any]:
        return relayed(original(*arguments, **named), kind, by)

    return instead


@coroutine
def relayed(
    steps: Generator[Any, Any, Any], kind: str, by: Callable[[Any], Generator[Any, Any, Any]]
) -> Generator[Any, Any, Any]:
    """`with_step`, of a generator that runs."""
    answer: Any = None
    failure: Exception | None = None
    while True:
        try:
            step = steps.send(answer) if failure is None else steps.throw(failure)
        except StopIteration as end:
            return end.value
        answer = failure = None
        try:
            answer = (yield from by(step)) if type(step).__name__ == kind else (yield step)
        except Exception as error:
            failure = error
