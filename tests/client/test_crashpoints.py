"""The crash points themselves: hit and noted, counted, refused when misspelt, silent when off."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from pyomid.crashpoints import POINTS, arm, arm_action, crash_point, disarm
from pyomid.errors import Misuse

pytestmark = pytest.mark.fast

POINT = "client.flush.before"
PASS_FIVE_TIMES = f"""
from pyomid.crashpoints import crash_point
for passage in range(5):
    crash_point("client.flush.after")
    crash_point({POINT!r})
    print(passage, flush=True)
"""


def run(tmp_path: Path, at: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYOMID_CRASH_AT": at, "PYOMID_CRASH_NOTE": str(tmp_path / "note")}
    return subprocess.run(
        [sys.executable, "-c", PASS_FIVE_TIMES], env=environment, capture_output=True, text=True, timeout=30
    )


@pytest.mark.parametrize("nth", [1, 3])
def test_the_nth_passage_kills_and_leaves_a_note(tmp_path: Path, nth: int) -> None:
    ended = run(tmp_path, f"{POINT}:{nth}")
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout.split() == [str(passage) for passage in range(nth - 1)]
    name, pid = (tmp_path / "note").read_text().split()
    assert name == POINT
    assert int(pid) > 0


def test_a_point_that_is_passed_too_seldom_leaves_no_note(tmp_path: Path) -> None:
    assert run(tmp_path, f"{POINT}:6").returncode == 0
    assert not (tmp_path / "note").exists()


@pytest.mark.parametrize("at", ["client.flush.befor", f"{POINT}:x", f"{POINT}:0"])
def test_a_misspelt_point_is_refused_and_does_not_pass_for_a_survived_one(tmp_path: Path, at: str) -> None:
    ended = run(tmp_path, at)
    assert ended.returncode == 1
    assert "Misuse" in ended.stderr


def test_only_the_armed_point_acts_and_none_after_disarming() -> None:
    passed: list[str] = []
    arm_action(POINT, lambda: passed.append(POINT))
    try:
        for name in POINTS:
            crash_point(name)
    finally:
        disarm()
    assert passed == [POINT]
    for name in POINTS:
        crash_point(name)
    assert passed == [POINT]


def test_a_second_point_is_refused_while_one_is_armed_and_the_first_stays() -> None:
    passed: list[str] = []
    arm_action(POINT, lambda: passed.append(POINT))
    try:
        for again in (partial(arm_action, POINT, disarm), partial(arm, "client.begin.after")):
            with pytest.raises(Misuse, match=rf"crash point '{POINT}' is already armed: call disarm"):
                again()
        crash_point(POINT)
    finally:
        disarm()
    assert passed == [POINT]


def test_an_unknown_way_to_crash_is_refused() -> None:
    with pytest.raises(Misuse, match="unknown way"):
        arm(POINT, how="explode")


def test_every_point_is_named_by_its_room_and_passed_somewhere() -> None:
    sources = "\n".join(path.read_text() for path in Path(sys.modules["pyomid"].__path__[0]).rglob("*.py"))
    for name in POINTS:
        assert name.split(".")[0] in {"client", "tso", "storage", "hbase", "spark"}
        assert f'crash_point("{name}")' in sources, name
    assert set(re.findall(r'crash_point\("([^"{]+)"\)', sources)) <= set(POINTS)
