"""Compiled code: a kernel is a plain function that numba compiles at its first call, never at import.

    @kernel("int64(int64[::1], int64)")
    def count_above(values, bound): ...

The compiled form is kept on disk (`kernel_cache`), so that only the first process after an installation pays for it;
`compile_all` lets an installer pay at once. A kernel may call another kernel: what is kept
goes by all that it was made of (`kernel_digests`). The undecorated function stays at `.plain`. Importing this module
does not import numba.

numba is an extra (`pyomid[fast]`). Without it the reference implementation of each kernel does its work: who calls a
kernel asks whether it `is_ready`, and otherwise goes by code of its own in plain Python, or by the kernel's `python`.

What many kernels work on has names: a `Record` of fields, a `NamedTuple` of arrays. A signature names them by their
classes, which the kernel's module has to import:

    @record
    class Window(Record):
        next_start: int
        end: int

    class Found(NamedTuple):
        starts: Annotated[Any, "int64[::1]"]
        windows: Annotated[Any, "Window[::1]"]

    @kernel("int64(Window, Found)")
    def take_start(window, found): ...

Python hands a record over as an array of one, `Window[::1]`, and arrays as a plain tuple, `Fields(Found)`, of which
the kernel makes `Found(*arrays)`: numba takes microseconds for a single record or a named tuple. A member may be an
integer too. A kernel has at most eight parameters; what is more belongs together, and gets a name.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, cached_property, lru_cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Annotated, Any, Final, Generic, ParamSpec, Protocol, TypeVar, get_type_hints

from pyomid.arrays import NDArray, np
from pyomid.kernels.cache import cache_folder, keep_in, kept_in, python_tag
from pyomid.kernels.digests import digest_of, names_in
from pyomid.kernels.loading import (
    can_compile,
    is_ready,
    is_worth_loading,
    tell_of_compiling,
    tell_of_no_folder,
    undisturbed,
)

P = ParamSpec("P")
R = TypeVar("R")

READ_BYTES: Final = "Array(uint8, 1, 'C', readonly=True)"
READ_INT32S: Final = "Array(int32, 1, 'C', readonly=True)"
READ_INT64S: Final = "Array(int64, 1, 'C', readonly=True)"
"""Of arrays that a kernel only reads: they may lie over `bytes` or a memory map."""

Bytes = Annotated[NDArray[np.uint8], "uint8[::1]"]
Int32s = Annotated[NDArray[np.int32], "int32[::1]"]
Int64s = Annotated[NDArray[np.int64], "int64[::1]"]
ReadBytes = Annotated[NDArray[np.uint8], READ_BYTES]
ReadInt32s = Annotated[NDArray[np.int32], READ_INT32S]
ReadInt64s = Annotated[NDArray[np.int64], READ_INT64S]
"""Members of a group; as annotations of parameters they say no more than their first part."""

_kernels: list[Kernel[Any, Any]] = []
_compiling = threading.RLock()
_FORK_WAIT_S: Final = 5.0


class Record(ctypes.Structure):
    """Fields of 64 bits that kernels and Python share; a subclass is a `record`."""

    @classmethod
    def dtype(cls) -> np.dtype[Any]:
        return np.dtype(cls)

    @classmethod
    def array(cls, count: int) -> Any:
        """Zeros."""
        return np.zeros(count, dtype=cls.dtype())

    def as_array(self) -> Any:
        """This record as an array of one, over the same memory: what a kernel takes."""
        return np.frombuffer(memoryview(self), dtype=self.dtype())


RecordType = TypeVar("RecordType", bound=type[Record])
Each = TypeVar("Each", bound=Record, covariant=True)


class Records(Protocol[Each]):
    """An array of records, as a kernel sees it."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any) -> Each: ...


def record(named: RecordType) -> RecordType:
    """Its annotations are its fields."""
    named._fields_ = [(field, ctypes.c_int64) for field in named.__annotations__]
    return named


class Kernel(Generic[P, R]):
    """Calls like the function it was made of. Releases the interpreter lock while it runs."""

    def __init__(self, plain: Callable[P, R], signature: str, options: dict[str, Any]) -> None:
        self.plain = plain
        self.signature = signature
        self.name = f"{plain.__module__}.{plain.__qualname__}"
        self._options = options
        self._compiled: Callable[P, R] | None = None
        self._rows_before = 0
        self.__doc__ = plain.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return (self._compiled or self.compiled())(*args, **kwargs)

    def compiled(self) -> Callable[P, R]:
        """The machine code, loaded from disk or compiled now."""
        return self._compiled or undisturbed(self._compiled_once)

    def _compiled_once(self) -> Callable[P, R]:
        with _compiling:
            if self._compiled is None:
                self._compiled = self._compile()
            return self._compiled

    def entry(self) -> Callable[..., Any]:
        """The machine code without numba's look at the types of its arguments, which takes longer than ten begins.

        For a caller whose arguments are what the signature says: with others, what happens is undefined.
        """
        [compiled] = self.compiled().overloads.values()  # type: ignore[attr-defined]
        entry: Callable[..., Any] = compiled.entry_point
        return entry

    @property
    def is_loaded(self) -> bool:
        """Whether a call is only a call."""
        return self._compiled is not None

    @property
    def is_ready(self) -> bool:
        """Whether to call it. Where not, the reference implementation does the work."""
        return self._compiled is not None or is_ready(self)

    def is_ready_for(self, rows: int) -> bool:
        """`is_ready`, for work on so many rows: the first few of a process load nothing."""
        return self._compiled is not None or (self._is_worth_it(rows) and is_ready(self, rows))

    def for_rows(self, rows: int) -> Callable[P, R]:
        """For a caller without code of its own: the kernel, which is loaded now if need be; for the first few rows of a
        process, or where nothing can be compiled, the same in plain Python."""
        if self._compiled is not None:
            return self._compiled
        return self if self._is_worth_it(rows) and can_compile() else self.python

    def _is_worth_it(self, rows: int) -> bool:
        self._rows_before += rows
        return is_worth_loading(self, self._rows_before)

    @cached_property
    def python(self) -> Callable[P, R]:
        """The same in plain Python, with the kernels that it calls."""
        return self._linked_to(lambda called: called.python if isinstance(called, Kernel) else called.plain)

    @cached_property
    def digest(self) -> str:
        """Of all that the machine code is made of."""
        assert isinstance(self.plain, FunctionType)
        named = {name: _layout(each) for name, each in _named_in(self.signature, self.plain).items()}
        return digest_of(self.plain, self.signature, sorted(self._options.items()), *([named] if named else []))

    @property
    def is_kept(self) -> bool:
        """Whether the machine code lies on disk, for this Python and this numba; told without loading numba."""
        return kept_in(self.source, self._file_name) is not None

    @property
    def package(self) -> str:
        return self.plain.__module__.rpartition(".")[0]

    @property
    def _code(self) -> CodeType:
        assert isinstance(self.plain, FunctionType)
        return self.plain.__code__

    @property
    def source(self) -> Path:
        return Path(self._code.co_filename)

    @property
    def _kept_name(self) -> str:
        return f"{self.plain.__qualname__}-{self.digest}"

    @property
    def _file_name(self) -> str:
        """As numba makes it, without its ending."""
        module = self.plain.__module__.rpartition(".")[2]
        return f"{module}.{self._kept_name}-{self._code.co_firstlineno}.{python_tag()}"

    def _compile(self) -> Callable[P, R]:
        import numba

        _keep_unpickled()
        signature, linked, options = self._numba_signature(), self._linked(), {"nogil": True, **self._options}
        folder = kept_in(self.source, self._file_name)
        if folder is None:
            tell_of_compiling()
            folder = cache_folder(self.source)
        if folder is None:
            tell_of_no_folder()
        else:
            keep_in(linked, folder)
            with suppress(OSError):  # what is kept is of another processor, and cannot be replaced
                folder.mkdir(parents=True, exist_ok=True)
                kept: Callable[P, R] = numba.njit(signature, cache=True, **options)(linked)
                return kept
        compiled: Callable[P, R] = numba.njit(signature, **options)(linked)
        return compiled

    def _numba_signature(self) -> Any:
        """Of types, where it names records or groups of arrays; else its text."""
        assert isinstance(self.plain, FunctionType)
        named = _named_in(self.signature, self.plain)
        if not named:
            return self.signature
        from numba import types

        known = {**vars(types), "Fields": lambda group: types.Tuple(list(group.types))}  # type: ignore[no-untyped-call]
        return eval(self.signature, {}, {**known, **{name: _numba_type(each) for name, each in named.items()}})

    def _linked(self) -> Callable[P, R]:
        """The function with the kernels it calls replaced by their compiled forms, which numba can call."""
        linked = self._linked_to(lambda called: called.compiled())
        linked.__module__, linked.__qualname__ = self.plain.__module__, self._kept_name  # numba calls its file by it
        return linked

    def _linked_to(self, form: Callable[[Kernel[Any, Any] | Instruction], Any]) -> Callable[P, R]:
        """The function with the kernels it calls in this form."""
        plain = self.plain
        assert isinstance(plain, FunctionType)
        names = {name: plain.__globals__.get(name) for name in names_in(plain.__code__)}
        called = {name: form(value) for name, value in names.items() if isinstance(value, Kernel | Instruction)}
        return FunctionType(
            plain.__code__, {**plain.__globals__, **called}, plain.__name__, plain.__defaults__, plain.__closure__
        )


def _named_in(signature: str, where: Any) -> dict[str, type]:
    """The records and groups of arrays that a signature names, as the module of the function or class knows them."""
    known = vars(sys.modules[where.__module__]) if isinstance(where, type) else where.__globals__
    found = {name: known.get(name) for name in re.findall(r"\b[A-Z]\w*", signature)}
    return {name: each for name, each in found.items() if isinstance(each, type) and issubclass(each, Record | tuple)}


def _members(group: type) -> dict[str, str]:
    """The arrays of a `NamedTuple`, as its annotations say them."""
    return {name: hint.__metadata__[0] for name, hint in get_type_hints(group, include_extras=True).items()}


def _layout(named: type) -> object:
    """What a kernel's machine code knows of it."""
    if issubclass(named, Record):
        return str(named.dtype())
    members = _members(named)
    inner = _named_in(" ".join(members.values()), named)
    return [*members.items(), *((name, _layout(each)) for name, each in inner.items())]


def _numba_type(named: type) -> Any:
    import numba
    from numba import types

    if issubclass(named, Record):
        return numba.from_dtype(named.dtype())
    members = _members(named)
    known = {name: _numba_type(each) for name, each in _named_in(" ".join(members.values()), named).items()}
    each_type = [eval(member, {}, {**vars(types), **known}) for member in members.values()]
    return types.BaseTuple.from_types(each_type, named)  # type: ignore[no-untyped-call]


@cache
def _keep_unpickled() -> None:
    """numba asks a Python function for the type of each array that a kernel returns, and goes on whatever that raises:
    Ctrl-C there becomes a `SystemError`, or a tuple with a hole in it that ends the process. Behind a cache written in
    C no interrupt comes up in it after the first call. Before the first kernel is called: numba keeps the function.
    """
    from numba.core import serialize

    serialize._numba_unpickle = lru_cache(maxsize=None)(serialize._numba_unpickle)


class Instruction:
    """What the processor can do and numba does not say, for kernels. Called from Python, `plain` runs.

    `make` gives numba's intrinsic: it runs when the first kernel that uses it is compiled, so that importing its
    module does not import numba.
    """

    def __init__(self, plain: Callable[..., Any], make: Callable[[], Any]) -> None:
        self.plain = plain
        self._make = make
        self.__wrapped__ = make  # what it is made of
        self._made: Any = None

    def __call__(self, *args: Any) -> Any:
        return self.plain(*args)

    def compiled(self) -> Any:
        if self._made is None:
            self._made = self._make()
        return self._made


def kernel(signature: str, **options: Any) -> Callable[[Callable[P, R]], Kernel[P, R]]:
    """Makes a function a kernel with this numba signature; `options` are `numba.njit`'s."""

    def decorate(plain: Callable[P, R]) -> Kernel[P, R]:
        made = Kernel(plain, signature, options)
        _kernels.append(made)
        return made

    return decorate


def now(kernel: Kernel[P, R], rows: int) -> Callable[P, R]:
    """The kernel if it is ready for so many rows, else the same in plain Python."""
    return kernel if kernel.is_ready_for(rows) else kernel.python


def kernels_of(*packages: str) -> list[Kernel[Any, Any]]:
    """The kernels of these packages' modules imported so far."""
    return [each for each in _kernels if each.package in packages]


def compile_all(package: str) -> Iterator[str]:
    """Compiles every kernel of the package's modules imported so far; yields each one's name when it is ready."""
    for each in kernels_of(package):
        each.compiled()
        yield each.name


def _before_fork() -> None:
    """A child of fork that began while another thread loads kernels could never load them itself."""
    _compiling.acquire(timeout=_FORK_WAIT_S)


def _after_fork_in_parent() -> None:
    with suppress(RuntimeError):  # not held: another thread compiles for longer than that
        _compiling.release()


def _after_fork_in_child() -> None:
    global _compiling
    _compiling = threading.RLock()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
