"""`pyomid shell` in a real terminal: by plain lines, and by prompt_toolkit and rich."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import pyomid

pytestmark = pytest.mark.process

PLAIN = "import sys; sys.modules['prompt_toolkit'] = sys.modules['rich'] = None; "
START = "from pyomid.cli import main; sys.exit(main(['shell', sys.argv[1]]))"


class Terminal:
    def __init__(self, command: list[str]) -> None:
        self._ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "vt100", "COLUMNS": "100", "PROMPT_TOOLKIT_NO_CPR": "1"}
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True,
            preexec_fn=_owns_terminal,
        )  # fmt: skip
        os.close(theirs)
        self._shown = b""
        self._passed = 0

    def type(self, text: str, then: str) -> None:
        """Waits until something that matches `then` is shown after all that was awaited before."""
        os.write(self._ours, text.encode())
        self.until(then)

    def until(self, pattern: str) -> None:
        deadline = time.monotonic() + 60
        while (match := re.search(pattern, self._text[self._passed :])) is None:
            assert select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))[0], self._text
            self._shown += os.read(self._ours, 65536)
        self._passed += match.end()

    def until_it_reads(self) -> None:
        """readline loses a signal that comes between its echo and its next wait for a key: a person presses again."""
        deadline = time.monotonic() + 60
        asleep = 0
        while asleep < 20:
            state = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
            asleep = asleep + 1 if state == "S" else 0
            assert time.monotonic() < deadline
            time.sleep(0.01)

    @property
    def _text(self) -> str:
        """Without what moves the cursor."""
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|[\r\x1b]", "", self._shown.decode(errors="replace"))


def _owns_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts its background jobs without it


@pytest.mark.parametrize("kind", ["plain lines", "with the extra"])
def test_ctrl_c_at_a_terminal_loses_no_transaction(tmp_path: Path, kind: str) -> None:
    url = f"omid://{tmp_path}/db"
    with pyomid.connect(url) as db:
        db.create_table("t", families=["f"])
        program = (PLAIN if kind == "plain lines" else "import sys; ") + START
        terminal = Terminal([sys.executable, "-c", program, url])
        terminal.until("pyomid>")
        terminal.type("begin\r", r"began \d+\n+pyomid \d+>")
        terminal.type("put t k f:a=1\r", r"\npyomid \d+>")
        terminal.type("put t k f:a=2", "f:a=2")
        terminal.until_it_reads()
        terminal.type("\x03", r"stays open: commit or rollback\n+pyomid \d+>")
        terminal.type("commit\r", r"committed \d+ at \d+ \(.*Z\)\n+pyomid>")
        terminal.type("get t k\r", r"k   f:a=1\n+pyomid>")
        terminal.type("\x04", "")
        assert terminal.process.wait(60) == 0
        with db.snapshot() as tx:
            assert tx.table("t").get(b"k") == {b"f:a": b"1"}
