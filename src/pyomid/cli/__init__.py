"""The `pyomid` command. Each module of this package with `add_command` adds one or more subcommands.

Like `wiring`, the command may import every package, because it chooses a concrete deployment.
"""

from __future__ import annotations

import argparse
import os
import pkgutil
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from pyomid import __version__
from pyomid.errors import OmidError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0, 2 for a wrong command line, 1 for any other error."""
    arguments = _with_url_first(list(sys.argv[1:] if argv is None else argv))
    parsed = _parser(arguments[0] if arguments else "").parse_args(arguments)
    try:
        code = int(parsed.run(parsed) or 0)
        sys.stdout.flush()
        return code
    except OmidError as error:
        print(f"pyomid: {error} [{error.code}]", file=sys.stderr)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the interpreter flushes standard output again when it exits
        return 1
    except KeyboardInterrupt:
        return 130


COLUMNS_MAX: Final = 80


class CommandParser(argparse.ArgumentParser):
    """A parser whose help is at most 80 columns wide, even on a wider terminal."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": HelpText, **options})


class HelpText(argparse.HelpFormatter):
    def __init__(self, prog: str, **options: Any) -> None:
        columns = min(shutil.get_terminal_size().columns, COLUMNS_MAX)
        super().__init__(prog, **{"width": columns - 2, "max_help_position": 28, **options})


class HelpInLines(HelpText, argparse.RawDescriptionHelpFormatter):
    """A help formatter that keeps the line breaks of the texts before and after the options."""


def whole_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    return _parser("")


def _parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of all commands, or only of `command` if it is known, so that a service does not load the
    others."""
    parser = CommandParser(prog="pyomid", description="Inspect, maintain and serve pyomid databases.")
    parser.add_argument("--version", action="version", version=f"pyomid {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in _modules(command):
        module.add_command(commands)
    return parser


def _with_url_first(arguments: list[str]) -> list[str]:
    """Return the arguments with the URL of `tables` first, where the parser expects it; users may type it after the
    action."""
    if arguments[:1] != ["tables"]:
        return arguments
    place = next((place for place, word in enumerate(arguments) if _is_url(word)), 1)
    return ["tables", *arguments[place : place + 1], *arguments[1:place], *arguments[place + 1 :]]


def _is_url(word: str) -> bool:
    return word.startswith(("omid:", "omid+hbase:", "omid-memory:"))


def _modules(command: str) -> Iterator[ModuleType]:
    """Yield only the module that is named like the command, so that a service does not load the others. If there is no
    such module, yield all."""
    names = [name for _, name, _ in pkgutil.iter_modules(__path__) if not name.startswith("_")]
    if command in names and hasattr(only := import_module(f"{__name__}.{command}"), "add_command"):
        yield only
        return
    for name in names:
        module = import_module(f"{__name__}.{name}")
        if hasattr(module, "add_command"):
            yield module
