"""The simulation's build of the core: its source, executed under a namespace of its own, with a patch or without.

There is no switch in the product. A mutant is the core with one piece of its text replaced; every module inside the
build imports the others of the same build, so the patch reaches all of them. Value objects that carry no rule
(`effects`, `requests`, `instructions`, and everything outside `core`) are the product's own. Kernels run as the
plain Python that they are.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pyomid.core
from pyomid.errors import Misuse

SHARED: Final = frozenset({"effects", "requests", "instructions"})
"""Vocabulary: a build with classes of its own could not talk to the simulation."""

_CORE_FOLDER: Final = Path(pyomid.core.__file__).parent
_ROOT: Final = "pyomid_simulated_"
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Patch:
    """One replacement in one module of `core`: `text` must occur exactly once."""

    module: str
    text: str
    replacement: str

    def apply(self, source: str) -> str:
        """`Misuse` where the text is not there exactly once: the mutant has rotted."""
        found = source.count(self.text)
        if found != 1:
            raise Misuse(f"core/{self.module}.py holds {self.text!r} {found} times, a patch needs exactly one")
        return source.replace(self.text, self.replacement)


def source_of(module: str) -> str:
    return (_CORE_FOLDER / f"{module}.py").read_text()


class Build:
    """`build.reading`, `build.compaction` …: modules of this build, loaded at first use."""

    def __init__(self, patches: Sequence[Patch] = ()) -> None:
        self.namespace = f"{_ROOT}{next(_numbers)}"
        self.patches = tuple(patches)
        known = {path.stem for path in _CORE_FOLDER.glob("*.py")}
        for patch in self.patches:
            if patch.module not in known - SHARED:
                raise Misuse(f"core has no module {patch.module!r} that a patch may change")
            patch.apply(source_of(patch.module))
        package = ModuleType(self.namespace)
        package.__path__ = []
        sys.modules[self.namespace] = package
        _finder.builds[self.namespace] = self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return importlib.import_module(f"pyomid.core.{name}" if name in SHARED else f"{self.namespace}.{name}")

    def fast_path(self, machine: Any) -> Any:
        """What decides beside the machine: nothing here, the compiled kernel in `compiled.CompiledBuild`."""
        return None

    def source(self, module: str) -> str:
        """The module's text as this build runs it."""
        text = source_of(module)
        for patch in self.patches:
            if patch.module == module:
                text = patch.apply(text)
        text = text.replace("from pyomid.compiled import kernel", f"from {__name__} import plain_kernel as kernel")
        text = re.sub(r"from pyomid\.core import (?!\(|.*\b(?:effects|requests|instructions)\b)", self._from_core, text)
        return re.sub(r"\bpyomid\.core\.(\w+)", self._named, text)

    def _from_core(self, _: re.Match[str]) -> str:
        return f"from {self.namespace} import "

    def _named(self, found: re.Match[str]) -> str:
        name = found.group(1)
        return found.group(0) if name in SHARED else f"{self.namespace}.{name}"


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `pyomid_simulated_N.module` in build N."""

    def __init__(self) -> None:
        self.builds: dict[str, Build] = {}

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> Any:
        namespace, _, module = fullname.partition(".")
        if namespace not in self.builds or not (_CORE_FOLDER / f"{module}.py").exists():
            return None
        return importlib.machinery.ModuleSpec(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        namespace, _, name = module.__name__.partition(".")
        code = compile(self.builds[namespace].source(name), str(_CORE_FOLDER / f"{name}.py"), "exec")
        exec(code, module.__dict__)


_finder = _Finder()
sys.meta_path.append(_finder)


def plain_kernel(signature: str, **options: Any) -> Callable[[Any], Any]:
    """Stands in for `pyomid.compiled.kernel`: the function itself, uncompiled."""

    def decorate(function: Any) -> Any:
        function.plain = function
        return function

    return decorate
