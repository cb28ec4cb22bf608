"""`pyomid completion bash|zsh`: prints a script with which the shell completes commands and options."""

from __future__ import annotations

import argparse
from typing import Final

from pyomid.cli import HelpInLines, whole_parser
from pyomid.errors import extra_missing

_DESCRIPTION: Final = """\
Prints a script by which the shell completes pyomid's commands and options.
Print it again after an upgrade.

  bash  pyomid completion bash > \\
            ~/.local/share/bash-completion/completions/pyomid
  zsh   pyomid completion zsh > _pyomid        in a folder of $fpath"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "completion",
        help="print a script that completes commands in bash or zsh",
        description=_DESCRIPTION,
        formatter_class=HelpInLines,
    )
    parser.add_argument("shell", choices=["bash", "zsh"])
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError as error:
        raise extra_missing("completion needs the package shtab", "shell") from error
    print(shtab.complete(whole_parser(), shell=arguments.shell))
    return 0
