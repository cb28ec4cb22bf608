"""The files in deploy/ are valid for the command."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

import pytest

from pyomid.cli import tso

pytestmark = pytest.mark.fast

DEPLOY = Path(__file__).parents[2] / "deploy"


def options(*arguments: str, environment: dict[str, str] | None = None) -> dict[str, object]:
    parser = ArgumentParser()
    tso.add_command(parser.add_subparsers())
    return tso.read_options(parser.parse_args(["tso", *arguments]), environment or {})


def test_the_config_file_is_valid() -> None:
    read = options("--config", str(DEPLOY / "hbase" / "tso.yaml"))
    assert read["store"] == "omid+hbase://zk1:2181,zk2:2181,zk3:2181/hbase"


def test_every_commented_option_of_the_config_file_exists(tmp_path: Path) -> None:
    lines = (DEPLOY / "hbase" / "tso.yaml").read_text().splitlines()
    commented = [found[1] for line in lines if (found := re.fullmatch(r"# ([a-z-]+: \S+)", line))]
    assert len(commented) >= 5
    config = tmp_path / "tso.yaml"
    config.write_text("\n".join(commented))
    assert options("--config", str(config))["announce"]


def test_the_containers_environment_is_valid() -> None:
    lines = [part.strip(" \\") for part in (DEPLOY / "Containerfile").read_text().splitlines()]
    set_here = [line for line in lines if "PYOMID_TSO_" in line and not line.startswith("#")]
    given = dict(line.removeprefix("ENV ").split("=", 1) for line in set_here)
    read = options(environment=given)
    assert read["listen"] == "0.0.0.0:24758"
    assert read["metrics"] == "0.0.0.0:9180"
    known = {tso.ENVIRONMENT_PREFIX + option.attribute.upper() for option in tso.OPTIONS}
    assert set(given) <= known


def test_the_unit_starts_the_command_and_lets_it_drain() -> None:
    unit = (DEPLOY / "pyomid-tso.service").read_text()
    assert "ExecStart=/opt/pyomid/bin/pyomid tso --config /etc/pyomid/tso.yaml" in unit
    assert "KillSignal=SIGTERM" in unit


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
@pytest.mark.parametrize(
    "unit",
    sorted([*DEPLOY.rglob("*.service"), *DEPLOY.rglob("*.timer")]),
    ids=lambda unit: str(unit.relative_to(DEPLOY)),
)
def test_systemd_finds_nothing_wrong_with_the_unit(unit: Path, tmp_path: Path) -> None:
    """With the installed command stood in for by one that is there."""
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/pyomid/bin/pyomid", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, timeout=60)
    said = [line for line in done.stderr.splitlines() if unit.name in line]
    assert not said, said
