"""Compiled code: a kernel is a plain function that numba compiles at its first call, never at import.

    @kernel("int64(int64[::1], int64)")
    def count_above(values, bound): ...

The compiled form is kept on disk beside the source (numba's `cache=True`), so that only the first process after
an installation pays for it; `compile_all` lets an installer pay at once. A kernel may call another kernel. The
undecorated function stays at `.plain`. Importing this module does not import numba.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any, Final, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_kernels: list[Kernel[Any, Any]] = []
_compiling: Final = threading.RLock()


class Kernel(Generic[P, R]):
    """Calls like the function it was made of. Releases the interpreter lock while it runs."""

    def __init__(self, plain: Callable[P, R], signature: str, options: dict[str, Any]) -> None:
        self.plain = plain
        self.signature = signature
        self.name = f"{plain.__module__}.{plain.__qualname__}"
        self._options = options
        self._compiled: Callable[P, R] | None = None
        self.__doc__ = plain.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return (self._compiled or self.compiled())(*args, **kwargs)

    def compiled(self) -> Callable[P, R]:
        """The machine code, loaded from disk or compiled now."""
        with _compiling:
            if self._compiled is None:
                self._compiled = self._compile()
            return self._compiled

    @property
    def is_loaded(self) -> bool:
        """Whether a call is only a call."""
        return self._compiled is not None

    def _compile(self) -> Callable[P, R]:
        import numba

        options = {"cache": True, "nogil": True, **self._options}
        compiled: Callable[P, R] = numba.njit(self.signature, **options)(self._linked())
        return compiled

    def _linked(self) -> Callable[P, R]:
        """The function with the kernels it calls replaced by their compiled forms, which numba can call."""
        plain = self.plain
        assert isinstance(plain, FunctionType)
        names = {name: plain.__globals__.get(name) for name in plain.__code__.co_names}
        called = {name: value.compiled() for name, value in names.items() if isinstance(value, Kernel | Instruction)}
        linked = FunctionType(
            plain.__code__, {**plain.__globals__, **called}, plain.__name__, plain.__defaults__, plain.__closure__
        )
        linked.__module__, linked.__qualname__ = plain.__module__, plain.__qualname__
        return linked


class Instruction:
    """What the processor can do and numba does not say, for kernels; called from Python it is its plain twin.

    `make` gives numba's intrinsic: it runs when the first kernel that uses it is compiled, so that importing its
    module does not import numba.
    """

    def __init__(self, plain: Callable[..., Any], make: Callable[[], Any]) -> None:
        self.plain = plain
        self._make = make
        self._made: Any = None

    def __call__(self, *args: Any) -> Any:
        return self.plain(*args)

    def compiled(self) -> Any:
        if self._made is None:
            self._made = self._make()
        return self._made


def cache_folders(source: Path) -> list[Path]:
    """Where numba keeps the machine code of the kernels in this file, told without loading numba: the folder that
    NUMBA_CACHE_DIR names; else beside the source, or the user's own where that cannot be written."""
    folder = os.path.dirname(os.path.abspath(source))
    name = f"{os.path.basename(folder)}_{hashlib.sha1(folder.encode()).hexdigest()}"
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if chosen:
        return [Path(chosen) / name]
    users = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return [Path(folder) / "__pycache__", Path(users) / "numba" / name]


def kernel(signature: str, **options: Any) -> Callable[[Callable[P, R]], Kernel[P, R]]:
    """Makes a function a kernel with this numba signature; `options` are `numba.njit`'s."""

    def decorate(plain: Callable[P, R]) -> Kernel[P, R]:
        made = Kernel(plain, signature, options)
        _kernels.append(made)
        return made

    return decorate


def anything_is_loaded() -> bool:
    """Whether this process has paid for its first kernel: importing numba takes half a second, a further kernel
    milliseconds."""
    return "numba" in sys.modules


def compile_all(package: str) -> Iterator[str]:
    """Compiles every kernel of the package's modules imported so far; yields each one's name when it is ready."""
    for each in [each for each in _kernels if each.plain.__module__.rpartition(".")[0] == package]:
        each.compiled()
        yield each.name
