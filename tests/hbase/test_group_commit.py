"""Group commit: each thread gets the results of its own rows, and one thread sends at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from pyomid.errors import Unavailable
from pyomid.omid.hbase.group_commit import ROWS_MAX, GroupCommit, Results
from pyomid.omid.hbase.rpc.failures import RemoteFailure
from pyomid.omid.hbase.rpc.requests import RowMutation
from waiting import until

DEADLINE_S = 60.0


def rows(*names: bytes) -> list[RowMutation]:
    return [RowMutation(name, ()) for name in names]


class HeldServer:
    """Answers each call when it is let; a row's result says which row it was."""

    def __init__(self) -> None:
        self.calls: list[list[bytes]] = []
        self.came = threading.Semaphore(0)
        self.answers = threading.Semaphore(0)
        self.fails: Callable[[bytes], RemoteFailure | None] = lambda row: None
        self.error: Exception | None = None

    def send(self, requests: Sequence[RowMutation]) -> Results:
        self.calls.append([request.row for request in requests])
        self.came.release()
        assert self.answers.acquire(timeout=DEADLINE_S)
        if self.error is not None:
            raise self.error
        return [self.fails(request.row) or (request.row == b"true") for request in requests]


class Writer:
    """A thread that writes its rows; `outcome` is the results or the error."""

    def __init__(self, gatherer: GroupCommit, requests: Sequence[RowMutation]) -> None:
        self.outcome: object = None
        self._thread = threading.Thread(target=self._run, args=(gatherer, requests))
        self._thread.start()

    def _run(self, gatherer: GroupCommit, requests: Sequence[RowMutation]) -> None:
        try:
            self.outcome = list(gatherer.write(requests))
        except Unavailable as error:
            self.outcome = error

    def ended(self) -> object:
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        return self.outcome


def held(
    gatherer: GroupCommit, server: HeldServer, first: Sequence[RowMutation], *others: Sequence[RowMutation]
) -> list[Writer]:
    """The first one's call is on its way, the others wait behind it in their order."""
    writers = [Writer(gatherer, first)]
    assert server.came.acquire(timeout=DEADLINE_S)
    for count, each in enumerate(others, start=1):
        writers.append(Writer(gatherer, each))
        until(lambda count=count: len(gatherer._waiting) == count, "the writer never came")  # type: ignore[misc]
    return writers


def test_writes_during_a_call_share_the_next_one() -> None:
    server = HeldServer()
    writers = held(GroupCommit(server.send), server, rows(b"a"), rows(b"b", b"true"), rows(b"true"), rows(b"c"))
    for _ in range(2):
        server.answers.release()
    assert [writer.ended() for writer in writers] == [[False], [False, True], [True], [False]]
    assert server.calls == [[b"a"], [b"b", b"true", b"true", b"c"]]


def test_a_row_failure_affects_only_that_row() -> None:
    server, refused = HeldServer(), RemoteFailure("DoNotRetryIOException", "no")
    server.fails = lambda row: refused if row == b"bad" else None
    writers = held(GroupCommit(server.send), server, rows(b"a"), rows(b"bad"), rows(b"true"))
    for _ in range(2):
        server.answers.release()
    assert [writer.ended() for writer in writers] == [[False], [refused], [True]]


def test_an_error_of_the_call_is_raised_in_every_thread_it_carried() -> None:
    server = HeldServer()
    gatherer = GroupCommit(server.send)
    writers = held(gatherer, server, rows(b"a"))
    server.error = Unavailable("gone")
    server.answers.release()
    assert [writer.ended() for writer in writers] == [server.error]
    server.error = None
    server.answers.release()
    assert list(gatherer.write(rows(b"true"))) == [True]


def test_a_shared_call_is_limited_in_rows() -> None:
    server = HeldServer()
    many = [b"%d" % index for index in range(ROWS_MAX)]
    writers = held(GroupCommit(server.send), server, rows(b"a"), rows(b"b"), rows(*many), rows(b"c"))
    for _ in range(4):
        server.answers.release()
    for writer in writers:
        writer.ended()
    assert server.calls == [[b"a"], [b"b"], many, [b"c"]]


def test_a_lone_writer_sends_at_once_and_stays_no_leader() -> None:
    server = HeldServer()
    gatherer = GroupCommit(server.send)
    for _ in range(3):
        server.answers.release()
        assert list(gatherer.write(rows(b"a"))) == [False]
    assert server.calls == [[b"a"]] * 3
