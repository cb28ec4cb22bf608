"""Callers of the service: each posts a transfer now and then, and repeats it under its key until it is answered."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Final

from benchmarks.service.bank import ACCOUNTS, name_of, note

PATIENCE_S: Final = 300.0


class Callers:
    """Threads that keep the books beside the service: what it answered, to the cent."""

    def __init__(self, port: int, notes: Path, rate: float, threads: int) -> None:
        self._port, self._notes, self._pause_s = port, notes, threads / rate
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(threads)]
        self.changes = Counter[str]()
        """By account, of all transfers that were answered."""
        self.answered = 0
        self.repeated = 0
        self.wrong: list[str] = []

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Each ends with its transfer answered, so that the books are whole."""
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def _work(self, thread: int) -> None:
        chance, number = random.Random(thread), 0
        while not self._ends.wait(chance.uniform(0, 2 * self._pause_s)):
            number += 1
            source, target = (name_of(account) for account in chance.sample(range(ACCOUNTS), 2))
            cents = chance.randint(1, 100)
            try:
                self._transfer(f"{thread} {number}", source, target, cents)
            except Exception as error:
                with self._lock:
                    self.wrong.append(repr(error))
                return

    def _transfer(self, key: str, source: str, target: str, cents: int) -> None:
        body = json.dumps({"source": source, "target": target, "cents": cents})
        began, tries = time.monotonic(), 0
        while True:
            tries += 1
            status, answer = self._post(body, key)
            if status == 200:
                break
            if status not in (0, 503) or time.monotonic() - began > PATIENCE_S:
                raise AssertionError(f"transfer {key} was answered {status} {answer!r} in try {tries}")
            time.sleep(0.1)
        with self._lock:
            self.changes[source] -= cents
            self.changes[target] += cents
            self.answered += 1
            self.repeated += tries > 1
        note(self._notes, "transfer", f"{time.monotonic() - began:.4f}", tries)

    def _post(self, body: str, key: str) -> tuple[int, str]:
        """Status 0: the connection broke, or nobody listened."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            headers = {"Content-Type": "application/json", "Idempotency-Key": key}
            connection.request("POST", "/transfers", body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            return 0, repr(error)
        finally:
            connection.close()
