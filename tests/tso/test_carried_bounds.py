"""A TSO's memory for cells that commits carry is bounded while it cannot write them."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from service_process import cell, served

from pyomid.storage.embedded import EmbeddedStore
from pyomid.storage.embedded.writer_turns import WriterTurn
from pyomid.types import BeginReply, Column, CommitReply, CommitRequest, RowWrite, TableInfo
from pyomid.wire.codec import encode_request
from pyomid.wire.messages import Begin

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

CELL_BYTES = 50_000
COMMITS = 5_000
"""A quarter of a gigabyte, of one peer."""
HELD_BYTES_MAX = 160 << 20
"""More than `peer.CARRIED_BYTES_MAX`, and far less than all of it."""


def test_cells_that_wait_for_the_writer_are_bounded(tmp_path: Path) -> None:
    folder = tmp_path / "db"
    store = EmbeddedStore(folder)
    store.create_table(TableInfo("t", (b"f",)))
    cells = ((Column(b"f", b"x"), bytes(CELL_BYTES)),)
    with served(tmp_path, store=f"omid://{folder}") as service:
        peer = service.greeted()
        peer.send(b"".join(encode_request(Begin(), request_id=tag) for tag in range(1, COMMITS + 1)))
        starts = [
            answer.body.start_ts for _ in range(COMMITS) if isinstance((answer := peer.answer()).body, BeginReply)
        ]
        packed = store.pack_cells(starts[0], [("t", [RowWrite(b"row", cells)])])
        turn = WriterTurn(store._environment.folder)
        turn.take(time.monotonic() + 30.0, time.monotonic(), is_urgent=True)
        before = service.resident_bytes

        def send() -> None:
            for tag, start in enumerate(starts, 1):
                peer.send(encode_request(CommitRequest(start, (cell(tag),), cells=packed), request_id=tag))

        sender = threading.Thread(target=send)
        sender.start()
        most = 0
        for _ in range(20):
            time.sleep(0.1)
            most = max(most, service.resident_bytes - before)
        assert most < HELD_BYTES_MAX
        turn.release()
        answered = set()
        for _ in range(COMMITS):
            body = peer.told(CommitReply)
            assert body.committed
            answered.add(body.start_ts)
        sender.join()
        assert answered == set(starts)
    store.close()
