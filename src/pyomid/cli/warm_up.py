"""`pyomid warm-up`: compiles all kernels now, for an image or a fresh installation."""

from __future__ import annotations

import argparse


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "warm-up",
        help="compile all kernels now, so that no program waits for them",
        description="Compiles what is installed and keeps it: where PYOMID_CACHE says, else beside the installed"
        " package, else in the user's cache folder. In an image run it once, with the processor that will run it (or"
        " with NUMBA_CPU_NAME=generic here and there); the folder may be read-only afterwards.",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from pyomid.kernels.compile_packages import main
    from pyomid.kernels.loading import can_compile

    if not can_compile():
        print("nothing to compile: numba and numpy are not installed, or not wanted (extra pyomid[fast])")
        return 0
    main()
    return 0
