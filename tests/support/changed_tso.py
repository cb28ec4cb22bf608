"""`pyomid tso` with what no option sets: python changed_tso.py '{"limits": {"idle_s_max": 6}}' tso --listen …

The JSON object has arguments of `ServiceOptions`, and below "settings" and "limits" those of `TsoSettings` and
`PeerLimits`.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from typing import Any

from pyomid.cli import tso
from pyomid.omid.oracle.settings import TsoSettings
from pyomid.omid.tso.peer import PeerLimits
from pyomid.omid.tso.startup import ServiceOptions

PROGRAM = [sys.executable, __file__]


def changed_tso(**changes: Any) -> list[str]:
    """What runs instead of `pyomid`."""
    return [*PROGRAM, json.dumps(changes)]


def main(changes: str, *words: str) -> int:
    given = json.loads(changes)
    settings, limits = TsoSettings(**given.pop("settings", {})), PeerLimits(**given.pop("limits", {}))
    parser = ArgumentParser()
    tso.add_command(parser.add_subparsers())
    return tso.run(parser.parse_args(words), ServiceOptions(settings=settings, limits=limits, **given))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
