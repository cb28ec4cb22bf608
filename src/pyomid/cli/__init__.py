"""The `pyomid` command. Each module here with `add_command` adds one or more subcommands.

Like `wiring` it may import every package, because it chooses a concrete deployment.
"""

from __future__ import annotations

import argparse
import os
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from types import ModuleType

from pyomid import __version__
from pyomid.errors import OmidError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0, 2 for a wrong command line, 1 for any other error."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="pyomid",
        description="Transactions (snapshot isolation) over key-value stores: service, status, maintenance.",
    )
    parser.add_argument("--version", action="version", version=f"pyomid {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in _modules(arguments[0] if arguments else ""):
        module.add_command(commands)
    parsed = parser.parse_args(arguments)
    try:
        code = int(parsed.run(parsed) or 0)
        sys.stdout.flush()
        return code
    except OmidError as error:
        print(f"pyomid: {error} [{error.code}]", file=sys.stderr)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the interpreter flushes again when it exits
        return 1
    except KeyboardInterrupt:
        return 130


def _modules(command: str) -> Iterator[ModuleType]:
    """Yield only the module named like the command, so that a service does not load the others; all if none is."""
    names = [name for _, name, _ in pkgutil.iter_modules(__path__) if not name.startswith("_")]
    for name in [command] if command in names else names:
        module = import_module(f"{__name__}.{name}")
        if hasattr(module, "add_command"):
            yield module
