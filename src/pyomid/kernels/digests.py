"""What a kernel's machine code is made of, as a digest: it is kept on disk under a name that has it.

numba asks whether the kernel's own source file is as it was. But the machine code also holds the kernels it calls, the
constants it names and the instructions, whichever modules they are in: after an update of one of those alone the old
code would be found, and run. So the digest goes over all of them, as they are in this process: files may have changed
since they were loaded, and what is compiled of the old ones must not be kept under the new ones' name.
"""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
from collections.abc import Iterator, Mapping, Set
from importlib import metadata
from types import CodeType, FunctionType, ModuleType
from typing import Any

from pyomid.arrays import np


def digest_of(plain: FunctionType, *settings: Any) -> str:
    """Of a kernel, its signature and options. A kernel that it names says its own digest, as `digest`."""
    words = "\n".join(_words_of_function(plain, set(), names_in(plain.__code__)))
    return hashlib.blake2b(f"{_numba()}\n{settings!r}\n{words}".encode(), digest_size=8).hexdigest()


@functools.cache
def _numba() -> str:
    """Its version, without the half second that loading it takes."""
    return metadata.version("numba")


def names_in(code: CodeType) -> set[str]:
    """All that may be a global of it, or of a function inside it; and attributes, which do no harm but for the time."""
    inner = (names_in(each) for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*inner)


@functools.cache
def _globals_of(code: CodeType) -> frozenset[str]:
    """Those alone, which takes much longer: what an instruction is made by has attributes that are called like us."""
    inner = (_globals_of(each) for each in code.co_consts if isinstance(each, CodeType))
    own = (each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL")
    return frozenset(own).union(*inner)


def _words(value: Any, seen: set[int]) -> Iterator[str]:
    """The same words in every process that would compile the same; TypeError where that cannot be told."""
    if isinstance(digest := getattr(value, "digest", None), str):
        yield f"kernel {digest}"
    elif value is None or isinstance(value, bool | int | float | complex | str | bytes | enum.Enum | np.generic):
        yield f"{type(value).__qualname__} {value!r}"
    elif isinstance(value, np.ndarray):
        yield f"array {value.dtype.str} {value.shape} {value.tobytes().hex()}"
    elif isinstance(value, tuple | list):
        yield f"{len(value)} of"
        for each in value:
            yield from _words(each, seen)
    elif isinstance(value, frozenset):
        yield f"set of {sorted(repr(each) for each in value)}"
    elif isinstance(value, CodeType):
        yield from _words_of_code(value, seen)
    elif isinstance(value, FunctionType):
        yield from _words_of_function(value, seen, _globals_of(value.__code__))
    elif isinstance(value, ModuleType):
        yield f"module {value.__name__} {getattr(value, '__version__', '')}"
    elif isinstance(value, type):
        members: Mapping[str, Any] = getattr(value, "__members__", {})
        yield f"class {value.__module__}.{value.__qualname__} {[repr(each) for each in members.values()]}"
    elif isinstance(wrapped := getattr(value, "__wrapped__", None), FunctionType):
        yield f"{type(value).__qualname__} of"  # numba's intrinsic
        yield from _words_of_function(wrapped, seen, _globals_of(wrapped.__code__))
    elif " at 0x" not in str(value):
        yield f"{type(value).__qualname__} {value}"  # one of numba's or LLVM's types, a symbol of the C library
    else:
        raise TypeError(
            f"a kernel names {value!r}, of which cannot be told whether it is the same in another process: "
            "name a number, a tuple, an array, a function or another kernel"
        )


def _words_of_code(code: CodeType, seen: set[int]) -> Iterator[str]:
    yield f"code {code.co_code.hex()} {code.co_flags} {code.co_argcount}"
    yield f"{code.co_names} {code.co_varnames} {code.co_freevars} {code.co_cellvars}"
    for each in code.co_consts:
        yield from _words(each, seen)


def _words_of_function(function: FunctionType, seen: set[int], names: Set[str]) -> Iterator[str]:
    yield f"function {function.__module__}.{function.__qualname__}"
    if id(function) in seen:
        return
    seen.add(id(function))
    package = function.__module__.partition(".")[0]
    yield from _words_of_code(function.__code__, seen)
    yield from _words(function.__defaults__, seen)
    for cell in function.__closure__ or ():
        yield from _words(cell.cell_contents, seen)
    for name in sorted(names & function.__globals__.keys()):
        value = function.__globals__[name]
        yield f"global {name}"
        if isinstance(value, FunctionType) and value.__module__.partition(".")[0] != package:
            yield f"{value.__module__}.{value.__qualname__}"  # a library's: its version stands for it
        else:
            yield from _words(value, seen)
