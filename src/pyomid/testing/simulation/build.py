"""The simulation's build of the core: its source, executed under a namespace of its own, with hooks or without.

There is no switch in the product. A mutant is the core with a named function or method replaced (`hooks`); every
module inside the build imports the others of the same build, so a hook reaches all of them. Value objects that carry
no rule (`effects`, `requests`, `instructions`, and everything outside `core`) are the product's own. Kernels run as
the plain Python that they are.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pyomid.core
from pyomid.errors import Misuse
from pyomid.testing.simulation.hooks import Hook

SHARED: Final = frozenset({"effects", "requests", "instructions"})
"""Vocabulary: a build with classes of its own could not talk to the simulation."""

_CORE_FOLDER: Final = Path(pyomid.core.__file__).parent
_ROOT: Final = "pyomid_simulated_"
_numbers = itertools.count(1)


class Build:
    """`build.reading`, `build.compaction` …: modules of this build, loaded at first use."""

    def __init__(self, hooks: Sequence[Hook] = ()) -> None:
        self.namespace = f"{_ROOT}{next(_numbers)}"
        self.hooks = tuple(hooks)
        known = {f"core.{path.stem}" for path in _CORE_FOLDER.glob("*.py")} - {f"core.{name}" for name in SHARED}
        for hook in self.hooks:
            if hook.module not in known:
                raise Misuse(f"core has no module {hook.module!r} that a hook may change")
        package = ModuleType(self.namespace)
        package.__path__ = []
        sys.modules[self.namespace] = package
        _finder.builds[self.namespace] = self
        for hook in self.hooks:
            getattr(self, hook.module.removeprefix("core."))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return importlib.import_module(f"pyomid.core.{name}" if name in SHARED else f"{self.namespace}.{name}")

    def fast_path(self, machine: Any) -> Any:
        """What decides beside the machine: nothing here, the compiled kernel in `compiled.CompiledBuild`."""
        return None

    def source(self, module: str) -> str:
        """The module's text, made to import the others of this build."""
        text = (_CORE_FOLDER / f"{module}.py").read_text()
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
        build = self.builds[namespace]
        code = compile(build.source(name), str(_CORE_FOLDER / f"{name}.py"), "exec")
        exec(code, module.__dict__)
        for hook in build.hooks:
            if hook.module == f"core.{name}":
                hook.put_into(module)


_finder = _Finder()
sys.meta_path.append(_finder)


def plain_kernel(signature: str, **options: Any) -> Callable[[Any], Any]:
    """Stands in for `pyomid.compiled.kernel`: the function itself, uncompiled."""

    def decorate(function: Any) -> Any:
        function.plain = function
        return function

    return decorate
