"""Public names of a package that are loaded at their first use, so that its import stays light.

`dir`, completion and `help` list every public name, loaded or not, but no name that the package only imports for its
own use.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for `package`. `homes` maps each lazy name to the module that defines it."""
    module = sys.modules[package]

    def load(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=module)
        value = getattr(import_module(home), name)
        setattr(module, name, value)
        return value

    def names() -> list[str]:
        own = {name for name, value in vars(module).items() if _is_special(name) or _is_submodule(module, name, value)}
        return sorted({*own, *module.__all__})

    return load, names


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _is_submodule(module: ModuleType, name: str, value: object) -> bool:
    return isinstance(value, ModuleType) and value.__name__ == f"{module.__name__}.{name}"
