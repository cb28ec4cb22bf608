"""examples/web under real servers; docs/web-service.md shows parts of it as they stand."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import pyomid
from portions import first
from pyomid.database.upkeep.expire import expire_keys

pytestmark = pytest.mark.process

REPOSITORY = Path(__file__).parents[2]
WEB = REPOSITORY / "examples" / "web"
SERVERS = {"uvicorn": ["uvicorn", "--port", "0", "service:app"], "gunicorn": []}


def container_command() -> list[str]:
    """What the container runs."""
    found = re.search(r"^CMD (\[.*\])$", (WEB / "Containerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    command: list[str] = json.loads(found[1])
    return command


class Service:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log
        self.url = ""

    def wait_for(self, pattern: str) -> str:
        deadline = time.monotonic() + 120
        while (found := re.search(pattern, self._log.read_text())) is None:
            assert self.process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.02)
        return found[0]

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        """Asks as a patient caller does: again after a lost connection, and when told so."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **{name.replace("_", "-"): v for name, v in headers.items()}}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        for _ in range(200):
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    text = answer.read().decode()
                    return answer.status, json.loads(text) if text.startswith(("{", "[")) else text
            except urllib.error.HTTPError as error:
                if error.code != 503:
                    return error.code, json.loads(error.read())
            except OSError:  # its worker died
                pass
            time.sleep(0.05)
        raise AssertionError(f"no answer to {method} {path}")


IMAGE = (
    "mount --bind {volume} {volume} && mount -o remount,bind,ro / && "
    "exec unshare --user --map-user=4711 --map-group=4711 -- "
)
"""Behind it nothing can be written but the volume, and the user has no name, no home and no rights of root."""


def in_image(volume: Path, command: list[str]) -> list[str]:
    shell = IMAGE.format(volume=shlex.quote(str(volume))) + shlex.join(command)
    return ["unshare", "--user", "--map-root-user", "--mount", "--propagation", "private", "--", "sh", "-c", shell]


def missing_namespaces(volume: Path) -> str:
    """Why this machine runs no image; empty where it does."""
    done = subprocess.run(in_image(volume, ["true"]), capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


@contextmanager
def served(server: str, folder: Path, *, is_image: bool = False) -> Iterator[Service]:
    started = SERVERS[server] or container_command()
    command = [str(Path(sys.executable).parent / started[0]), *started[1:]]
    environment = {**os.environ, "BANK_URL": f"omid://{folder}/db", "BANK_BIND": "127.0.0.1:0"}
    log = folder / "log"
    if is_image:
        command = in_image(folder, command)
        environment = {name: value for name, value in environment.items() if name.startswith("BANK_")}
        environment |= {"PATH": os.environ["PATH"], "TMPDIR": str(folder)}
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=WEB,
            env=environment,
            stdout=out,
            stderr=out,
        )
    service = Service(process, log)
    try:
        service.url = service.wait_for(r"http://127\.0\.0\.1:[1-9]\d*")
        yield service
        process.terminate()
        assert process.wait(60) in (0, -signal.SIGTERM), log.read_text()
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("server", first(1, SERVERS))
def test_a_repeated_post_counts_once_in_any_worker(tmp_path: Path, server: str) -> None:
    with served(server, tmp_path) as service:
        assert service.ask("GET", "/health") == (200, "well\n")
        for name, balance in (("ann", 1000), ("bob", 0)):
            assert service.ask("PUT", f"/accounts/{name}?balance={balance}")[0] == 201
        assert service.ask("PUT", "/accounts/ann?balance=5")[0] == 409

        def pay(number: int) -> tuple[int, Any]:
            if number == 30 and server == "gunicorn":
                os.kill(worker_of(service.process.pid), signal.SIGKILL)
            body = {"source": "ann", "target": "bob", "cents": 10}
            return service.ask("POST", "/transfers", body, Idempotency_Key=f"payment {number % 20}")

        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(pay, range(60)))
        assert {status for status, _ in answers} == {200}
        assert all(answers[number] == answers[number % 20] for number in range(60)), "one answer a key"
        assert service.ask("GET", "/accounts/ann")[1]["balance"] == 1000 - 20 * 10
        assert service.ask("GET", "/accounts/bob")[1]["balance"] == 20 * 10
        wrong = {"source": "ann", "target": "bob", "cents": 11}
        assert service.ask("POST", "/transfers", wrong, Idempotency_Key="payment 1")[0] == 422
        assert service.ask("POST", "/transfers", {**wrong, "cents": 10**6}, Idempotency_Key="much")[0] == 422
        assert service.ask("GET", "/accounts/carol")[0] == 404
        first = service.ask("GET", "/accounts?limit=1")[1]
        assert first["names"] == ["ann"]
        assert service.ask("GET", f"/accounts?after={first['next']}")[1] == {"names": ["bob"], "next": None}
        assert service.ask("GET", "/accounts?after=nonsense")[0] == 422


def test_a_post_repeated_after_its_answer_expired_is_told_so(tmp_path: Path) -> None:
    with served("uvicorn", tmp_path) as service:
        for name in ("ann", "bob"):
            service.ask("PUT", f"/accounts/{name}?balance=100")
        body = {"source": "ann", "target": "bob", "cents": 10}
        assert service.ask("POST", "/transfers", body, Idempotency_Key="old")[0] == 200
        with pyomid.connect(f"omid://{tmp_path}/db") as db:
            assert expire_keys(db, 1_000) == 0
            time.sleep(0.1)
            assert expire_keys(db, 0.05) == 1
        status, told = service.ask("POST", "/transfers", body, Idempotency_Key="old")
        assert (status, "so long ago" in told["detail"]) == (410, True)
        assert service.ask("GET", "/accounts/bob")[1]["balance"] == 110


@pytest.mark.long
def test_a_read_only_image_serves_under_a_nameless_user(tmp_path: Path) -> None:
    """What docs/web-service.md promises of a container: all that is written lies in its volume."""
    if reason := missing_namespaces(tmp_path):
        pytest.skip(f"no namespaces of an own user here: {reason}")
    with served("gunicorn", tmp_path, is_image=True) as service:
        assert service.ask("PUT", "/accounts/ann?balance=7")[0] == 201
        assert service.ask("GET", "/accounts/ann")[1] == {"name": "ann", "balance": 7}
        log = (tmp_path / "log").read_text()
    assert "ERROR" not in log
    assert "WARNING" not in log


def worker_of(master: int) -> int:
    """One of the workers that gunicorn forked."""
    return int(Path(f"/proc/{master}/task/{master}/children").read_text().split()[0])


def test_the_page_shows_the_service_as_it_stands() -> None:
    page = (REPOSITORY / "docs" / "web-service.md").read_text(encoding="utf-8")
    shown = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    source = (WEB / "service.py").read_text(encoding="utf-8")
    assert len(shown) == 3
    for block in shown:
        assert block in source, block
    assert ast.parse((WEB / "gunicorn.conf.py").read_text(encoding="utf-8"))
    for line in re.findall(r"^BANK_URL=\S+ (.*)$", page, re.MULTILINE):
        assert line in source
    assert " ".join(container_command()) in source
