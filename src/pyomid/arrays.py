"""numpy, imported at its first use. A process that only begins, reads rows and commits does not need numpy, and
importing it takes longer than all other work of a connection."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["NDArray", "np"]

_importing = threading.RLock()


def _import() -> None:
    with _importing:
        import numpy  # noqa: F401


def _numpy() -> Any:
    """Return numpy. A separate thread imports it, because numpy cannot be imported again after an interrupt in the
    middle of its import."""
    with suppress(RuntimeError):  # no thread can be started: the interpreter ends
        importer = threading.Thread(target=_import, name="pyomid-numpy", daemon=True)
        importer.start()
        importer.join()
    import numpy

    return numpy


class _Numpy:
    """Stands for the module numpy. An attribute that was used once is found without a call."""

    def __getattr__(self, name: str) -> Any:
        found = self.__dict__[name] = getattr(_numpy(), name)
        return found


if not TYPE_CHECKING:
    np = _Numpy()
    NDArray = None  # only for annotations, which are never evaluated


def _after_fork() -> None:
    with suppress(RuntimeError):  # an interrupt came before `acquire`
        _importing.release()


# A forked child inherits the locks of the parent's imports, but not the thread that would release them.
os.register_at_fork(before=_importing.acquire, after_in_parent=_after_fork, after_in_child=_after_fork)
