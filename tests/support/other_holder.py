"""Another process that has a folder's turn, played by a thread: locks are of open file descriptions."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from pyomid.folder.environment import Environment
from pyomid.folder.shared_file import Posted, SharedFile
from pyomid.folder.writer_turns import WriterTurn
from waiting import until

WAIT_S = 60.0


class Holder:
    """Performs what is posted, from `holding` to its end."""

    def __init__(self, environment: Environment, shared: SharedFile) -> None:
        self._environment, self._shared = environment, shared
        self._turn = WriterTurn(environment.folder)
        self._ends = threading.Event()

    def take_turn(self) -> None:
        began_s = time.monotonic()
        self._turn.take(began_s + WAIT_S, began_s)

    def give_turn_back(self) -> None:
        self._turn.release()
        self._shared.end_turn()

    def wait_for_post(self) -> None:
        until(lambda: self._environment._group is not None and self._environment._group.posted, "nothing is posted")

    def take(self) -> list[Posted]:
        """Take what is posted, once there is something."""
        posted: list[Posted] = []
        until(lambda: posted.extend(self._shared.gather()) or posted, "nothing is posted")
        return posted

    def perform(self, posted: list[Posted], *, marks_done: bool = True) -> None:
        """`marks_done`: False if it dies before it tells the owners."""
        assert self._environment.requests is not None
        with self._environment._lmdb.begin(write=True) as transaction:
            self._environment.requests.perform_posted(transaction, posted)
        if marks_done:
            self.mark_done(posted)
        self._shared.end_turn()

    def mark_done(self, posted: list[Posted]) -> None:
        for each in posted:
            self._shared.mark_done(each)

    def _run(self) -> None:
        ends = False
        while not ends:
            ends = self._ends.wait(0.0005)
            if posted := list(self._shared.gather()):
                self.perform(posted)

    @contextmanager
    def holding(self) -> Iterator[None]:
        self.take_turn()
        self._ends.clear()
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(self._run)
            try:
                yield
            finally:
                self._ends.set()
                running.result(WAIT_S)
                self.give_turn_back()

    def close(self) -> None:
        self._turn.close()
