"""The simulation's build of `protocol` and `oracle`: their source, executed under a namespace of its own, with hooks
or without.

There is no switch in the product. A mutant is a build with a named function or method replaced (`hooks`); every module
inside the build imports the others of the same build, so a hook reaches all of them. Value objects that carry no rule
(`SHARED`, and everything outside the two packages) are the product's own, and so are compiled modules.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pyomid
from pyomid.errors import Misuse
from simulation.hooks import Hook

SHARED: Final = frozenset({"protocol.effects", "omid.oracle.instructions"})
"""Vocabulary: a build with classes of its own could not talk to the simulation."""

_PACKAGES: Final = ("protocol", "omid.oracle")
_SOURCE: Final = Path(pyomid.__file__).parent
_ROOT: Final = "pyomid_simulated_"
_numbers = itertools.count(1)


class Build:
    """`build.reading`, `build.compaction` …: modules of this build, loaded at first use."""

    def __init__(self, hooks: Sequence[Hook] = ()) -> None:
        self.namespace = f"{_ROOT}{next(_numbers)}"
        self.hooks = tuple(hooks)
        for hook in self.hooks:
            if _file_of(hook.module) is None or hook.module in SHARED:
                raise Misuse(f"a build has no module {hook.module!r} that a hook may change")
        package = ModuleType(self.namespace)
        package.__path__ = []
        sys.modules[self.namespace] = package
        _finder.builds[self.namespace] = self
        for hook in self.hooks:
            importlib.import_module(f"{self.namespace}.{hook.module}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return importlib.import_module(self.place_of(name))

    def fast_path(self, machine: Any) -> Any:
        """What decides beside the machine: nothing here, the compiled kernel in `compiled.CompiledBuild`."""
        return None

    def place_of(self, name: str) -> str:
        """The whole name of one of this build's modules, of its last part."""
        [module] = [f"{package}.{name}" for package in _PACKAGES if _file_of(f"{package}.{name}")]
        return f"pyomid.{module}" if module in SHARED else f"{self.namespace}.{module}"

    def source(self, module: str) -> str:
        """The module's text, made to import the others of this build."""
        text = (_file_of(module) or _SOURCE).read_text(encoding="utf-8")
        package = r"((?:protocol|omid\.oracle)(?:\.(?:native|requests))?)"
        names = r"(\([^)]+\)|[^\n(]+$)"
        text = re.sub(rf"\bfrom pyomid\.{package} import {names}", self._from_package, text, flags=re.M)
        return re.sub(rf"\bpyomid\.({package}\.\w+)", self._named, text)

    def _from_package(self, found: re.Match[str]) -> str:
        package, names = found.groups()
        lines = []
        for name in filter(str.strip, names.strip("()").split(",")):
            module = f"{package}.{name.split()[0]}"
            lines.append(f"from {'pyomid' if _is_shared(module) else self.namespace}.{package} import {name.strip()}")
        return "; ".join(lines)

    def _named(self, found: re.Match[str]) -> str:
        return found.group(0) if _is_shared(found.group(1)) else f"{self.namespace}.{found.group(1)}"


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `pyomid_simulated_N.module` in build N."""

    def __init__(self) -> None:
        self.builds: dict[str, Build] = {}

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> Any:
        namespace, _, module = fullname.partition(".")
        if namespace not in self.builds or _file_of(module) is None:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=(_SOURCE / module.replace(".", "/")).is_dir())

    def exec_module(self, module: ModuleType) -> None:
        namespace, _, name = module.__name__.partition(".")
        build = self.builds[namespace]
        code = compile(build.source(name), str(_file_of(name)), "exec")
        exec(code, module.__dict__)
        for hook in build.hooks:
            if hook.module == name:
                hook.put_into(module)


_finder = _Finder()
sys.meta_path.append(_finder)


def _file_of(module: str) -> Path | None:
    """Where the source of `protocol.reading` lies; None where there is no such module in a build."""
    path = _SOURCE / module.replace(".", "/")
    if not any(f"{package}.".startswith(f"{module}.") or module.startswith(f"{package}.") for package in _PACKAGES):
        return None
    return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.exists()), None)


def _is_shared(module: str) -> bool:
    return module in SHARED or ".native" in module
