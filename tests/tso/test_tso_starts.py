"""A folder's TSO that cannot start or dies at once: clients get the reason, and restarts are limited."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import pyomid
from pyomid.errors import Misuse, OmidError, StoreFull, Unavailable
from pyomid.server import launcher
from pyomid.server.launcher import connect_to_folder
from pyomid.server.leadership import LOCK_FILE, holder
from pyomid.server.logs import LOG_FILE
from pyomid.storage.embedded import open_folder

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


def broken_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Every Python that is started from now on runs `code` first."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))


def refused(tmp_path: Path) -> str:
    with pytest.raises(Unavailable) as raised:
        pyomid.connect(f"omid://{tmp_path}/db?commitRetrySeconds=1")
    return str(raised.value)


def test_death_at_the_start_is_reported_and_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_python(
        tmp_path,
        monkeypatch,
        "import uvloop\ndef run(coroutine):\n    coroutine.close()\n    raise NameError('broken on purpose')\n"
        "uvloop.run = run\n",
    )
    assert "NameError: broken on purpose" in refused(tmp_path)
    logged = (tmp_path / "db" / LOG_FILE).read_text()
    assert "Traceback" in logged
    assert "broken on purpose" in logged
    assert "broken on purpose" in holder(tmp_path / "db")["died_of"]


def test_death_before_the_log_is_open_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_python(tmp_path, monkeypatch, "import sys\nif 'tso' in sys.orig_argv: sys.modules['argparse'] = None\n")
    assert "ModuleNotFoundError: import of argparse halted" in refused(tmp_path)
    assert "Traceback" in (tmp_path / "db" / LOG_FILE).read_text()


def test_death_by_a_signal_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_python(tmp_path, monkeypatch, "import uvloop, os\nuvloop.run = lambda coroutine: os.kill(os.getpid(), 11)\n")
    assert "of signal 11 during startup" in refused(tmp_path)
    assert "Fatal Python error: Segmentation fault" in (tmp_path / "db" / LOG_FILE).read_text()


def test_a_program_that_embeds_python_starts_the_tso_by_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In uWSGI the executable is uWSGI."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "uwsgi"))
    with pyomid.connect(f"omid://{tmp_path}/db?tsoIdleExitSeconds=0.5") as db:
        assert db.tables() == []


def test_a_python_that_cannot_be_run_is_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    with pytest.raises(Misuse, match=r"cannot run .*python3: No such file"):
        pyomid.connect(f"omid://{tmp_path}/db")


def test_a_stray_module_beside_the_client_is_not_the_tsos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would run as part of the TSO, or keep it from starting."""
    (tmp_path / "uvloop.py").write_text("raise RuntimeError('stray')\n")
    monkeypatch.chdir(tmp_path)
    with pyomid.connect(f"omid://{tmp_path}/db?tsoIdleExitSeconds=0.5&commitRetrySeconds=1") as db:
        assert db.tables() == []


def test_a_store_without_space_for_its_first_files_has_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client waited without a word. A full disk is played by the largest size that the TSO may give a file."""
    starts = tmp_path / "starts"
    broken_python(
        tmp_path,
        monkeypatch,
        "import sys, resource\nif 'tso' in sys.orig_argv:\n"
        f"    open({str(starts)!r}, 'a').write('x')\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, 1 << 14))\n",
    )
    with pytest.raises(StoreFull, match="is full"):
        pyomid.connect(f"omid://{tmp_path}/db")
    assert starts.read_text() == "x"


class FakeTime:
    """Goes on by being slept, and a little by being looked at."""

    now_s = 1000.0

    def clock(self) -> float:
        self.now_s += 0.01
        return self.now_s

    def sleep(self, pause_s: float) -> None:
        self.now_s += max(pause_s, 0.05)


def starts_of(folder: Path, time: FakeTime, program: str, for_s: float) -> tuple[int, list[OmidError]]:
    """How often clients that never give up start it, and what they are told."""
    until_s, errors = time.now_s + for_s, []
    command = [sys.executable, "-S", "-c", f"open({str(folder / 'starts')!r}, 'a').write('x')\n{program}"]
    while time.now_s < until_s:
        try:
            connect_to_folder(folder, command, timeout_s=until_s - time.now_s, clock=time.clock, sleep=time.sleep)
        except OmidError as error:
            errors.append(error)
            time.sleep(0.02)
    return len((folder / "starts").read_text()), errors


def test_a_tso_that_dies_at_once_is_restarted_at_growing_intervals(tmp_path: Path) -> None:
    open_folder(tmp_path)
    count, errors = starts_of(tmp_path, FakeTime(), "raise SystemExit('no such thing')", for_s=60.0)
    assert 8 <= count <= 20
    assert all("no such thing" in str(error) for error in errors)
    assert "in a row died soon" in str(errors[-1])


def test_a_tso_that_dies_while_serving_is_not_restarted_endlessly(tmp_path: Path) -> None:
    """Its start succeeds each time: the start alone would never show it."""
    open_folder(tmp_path)
    sign = f'open({str(tmp_path / LOCK_FILE)!r}, \'w\').write(\'{{"pid": 7, "died_of": "spleen"}}\')'
    count, errors = starts_of(tmp_path, FakeTime(), sign, for_s=60.0)
    assert 8 <= count <= 20
    assert "spleen" in str(errors[-1])


def test_after_a_normal_end_the_next_tso_starts_at_once(tmp_path: Path) -> None:
    open_folder(tmp_path)
    sign = f"open({str(tmp_path / LOCK_FILE)!r}, 'w').write('{{\"pid\": 7, \"ended\": true}}')"
    count, _ = starts_of(tmp_path, FakeTime(), sign, for_s=1.0)
    assert count > 10


def test_the_start_locks_file_may_hold_anything(tmp_path: Path) -> None:
    open_folder(tmp_path)
    for text in ("", "[]", "{", '{"last_s": "x", "short_lives": [], "failure": 3}', "\udcff", "1" * 5000):
        (tmp_path / launcher.START_LOCK_FILE).write_text(text, errors="surrogateescape")
        (tmp_path / "starts").unlink(missing_ok=True)
        count, _ = starts_of(tmp_path, FakeTime(), "raise SystemExit('no such thing')", for_s=1.0)
        assert count > 0
