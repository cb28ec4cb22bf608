"""The compiled decisions equal the reference implementation's: decisions, LWM, windows and bytes."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Hashable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from wire_bytes import block, field_of, varint

from portions import examples
from pyomid.omid.oracle.chunk_oracle import DONE, FULL, RARE_FRAME, ChunkOracle, ReferenceOracle
from pyomid.omid.oracle.instructions import (
    Flush,
    Flushed,
    Instruction,
    Reply,
    RequestCame,
    SendEncoded,
    StoreCall,
    StoreDone,
)
from pyomid.omid.oracle.machine import TsoMachine
from pyomid.omid.oracle.native.compiled_oracle import CompiledOracle
from pyomid.omid.oracle.native.decide import BEGIN, COMMIT, parse_frame
from pyomid.omid.oracle.native.memory import CacheLineMap, Op, TableColumn, TableRows, moved
from pyomid.omid.oracle.settings import TsoSettings
from pyomid.omid.oracle.status_oracle import BucketMap
from pyomid.omid.oracle.takeover import TakenOver
from pyomid.omid.tso.service import switch_to_native
from pyomid.omid.wire import omid_pb2 as pb
from pyomid.omid.wire.codec import ReceivedRequest, decode_answer, decode_request, encode_answer, encode_request
from pyomid.omid.wire.frames import HEADER_BYTES, ProtocolError, frame
from pyomid.omid.wire.messages import Begin, Fence, FenceReply, Seal
from pyomid.types import TIMESTAMP_STEP, BeginReply, CommitRequest, WriteSetLevel

pytestmark = pytest.mark.fast

CHUNK_BYTES = 1 << 16
TABLES = (11, -7, 1 << 62)
EPOCH = 1_000_000


class Driven:
    """A machine whose flushes end when the test says so, and the bytes it sent to each peer."""

    def __init__(self, *, entries: int, window_starts: int = 64, batch_entries_max: int = 100) -> None:
        chosen = TsoSettings(
            conflict_map_entries=entries,
            window_starts=window_starts,
            batch_entries_max=batch_entries_max,
            write_set_fraction_max=1.0,
            tables_interval_s=1e9,
        )
        taken_over = TakenOver(EPOCH, EPOCH + 10**12, EPOCH, 0, frozenset())
        self.machine = TsoMachine(chosen, taken_over, now_s=0.0, known_tables=TABLES)
        self.sent: dict[Hashable, bytes] = {}
        self.flushes: list[StoreCall] = []
        self.entries: list[tuple[int, int]] = []
        self.other: list[object] = []

    def feed(self, events: list[RequestCame | StoreDone]) -> None:
        self.perform(self.machine.handle(events, 0.0))

    def perform(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Reply(peer, tag, answer):
                    self.send(peer, encode_answer(answer, request_id=tag, extended=is_extended(peer)) or b"")
                case SendEncoded(replies):
                    self.send(replies.peer, replies.data)
                case StoreCall(operation=Flush()):
                    self.flushes.append(instruction)
                case _:
                    self.other.append(instruction)

    def send(self, peer: Hashable, data: bytes) -> None:
        self.sent[peer] = self.sent.get(peer, b"") + data

    def end_flush(self, index: int, refused: frozenset[int] = frozenset()) -> None:
        call = self.flushes.pop(index % len(self.flushes))
        assert isinstance(call.operation, Flush)
        more = [] if call.operation.block is None else call.operation.block.tolist()
        self.entries += sorted([*call.operation.entries, *map(tuple, more)], key=lambda entry: entry[1])
        self.feed([StoreDone(call.token, Flushed(refused, EPOCH))])

    def facts(self) -> tuple[object, ...]:
        machine = self.machine
        head = machine.state.windows.head
        counters = {name: count for name, count in machine.step.counters.items() if count}
        return (
            machine.state.oracle.low_watermark, machine.state.watermarks.published, machine.state.clock.next_ts,
            machine.state.newest_start,
            head.seq, head.next_start, head.window_end, len(machine.state.windows.batches), counters,
            dict(machine.state.oracle.fences), dict(machine.state.oracle.table_commits),
            [call.operation for call in self.other if isinstance(call, StoreCall)],
        )  # fmt: skip


class Fast(Driven):
    """What comes goes to an oracle by chunks, what is rare to the machine."""

    def __init__(self, *, entries: int, window_starts: int = 64, batch_entries_max: int = 100) -> None:
        super().__init__(entries=entries, window_starts=window_starts, batch_entries_max=batch_entries_max)
        self.fast = self.oracle()

    def oracle(self) -> ChunkOracle:
        return switch_to_native(self.machine, chunk_bytes_max=CHUNK_BYTES)

    def take(self, peer: Hashable, data: bytes) -> None:
        chunk = np.frombuffer(bytearray(data), dtype=np.uint8)
        at = 0
        while at < len(data):
            decided = self.fast.decide(chunk, at, len(data), peer=peer, extended=is_extended(peer))
            self.send(peer, decided.now)
            at = decided.consumed
            if decided.status == RARE_FRAME:
                payload = next(iter(payloads(data[at:])))
                incoming = decode_request(payload)
                self.machine._dispatch(RequestCame(peer, incoming.request_id, incoming.body))
                at += HEADER_BYTES + len(payload)
            else:
                assert decided.status in (DONE, FULL)
        self.feed([])

    def facts(self) -> tuple[object, ...]:
        return super().facts()


class Plain(Fast):
    def oracle(self) -> ChunkOracle:
        return ReferenceOracle(self.machine.state)


def is_extended(peer: Hashable) -> bool:
    return peer != "java"


def payloads(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        end = at + HEADER_BYTES + int.from_bytes(data[at : at + HEADER_BYTES], "big")
        found.append(data[at + HEADER_BYTES : end])
        at = end
    return found


Asked = CommitRequest | Begin


def random_chunk(rng: random.Random, machine: TsoMachine, pool: list[int]) -> list[tuple[Asked, int]]:
    """Mostly plain; sometimes a table, a retry, an unknown start, a doomed start, a large commit."""
    requests: list[tuple[Asked, int]] = []
    newest, oldest = machine.state.newest_start, max(EPOCH, machine.state.newest_start - 400 * TIMESTAMP_STEP)
    for tag in range(rng.randrange(1, 40)):
        kind = rng.random()
        if kind < 0.4:
            floor = rng.choice([0, 0, 0, machine.state.clock.last_issued, newest, machine.state.clock.last_issued + 50])
            requests.append((Begin(floor), tag))
            continue
        start = rng.randrange(oldest, newest + 1)
        start -= start % TIMESTAMP_STEP
        if kind > 0.95:
            start += rng.choice([1, 50 * 10**6, -start, 25])
        cells = tuple(rng.choice(pool) for _ in range(rng.randrange(0, 12)))
        tables = tuple(rng.choice(TABLES) for _ in range(rng.choice([0, 0, 1, 2])))
        level = WriteSetLevel.TABLE if kind < 0.41 and tables else WriteSetLevel.IDS
        requests.append((CommitRequest(start, cells, tables, level=level, is_retry=kind < 0.42), tag))
    return requests


def test_begins_keep_their_order_of_arrival_within_a_chunk() -> None:
    fast = Fast(entries=280)
    fast.take("java", b"".join(encode_request(Begin(), extended=False) for _ in range(100)))
    starts = [EPOCH + TIMESTAMP_STEP * (1 + index) for index in range(100)]
    assert fast.sent["java"] == b"".join(encode_answer(BeginReply(s), extended=False) or b"" for s in starts)


def test_begins_report_the_newest_fence() -> None:
    """Clients go by it when they trust the rules of a table that they read before."""
    fast, plain = Fast(entries=280), Plain(entries=280)
    for driven in (fast, plain):
        for peer in ("pyomid", "java"):
            extended = is_extended(peer)
            driven.take(peer, encode_request(Begin(), request_id=1, extended=extended))
        driven.take("pyomid", encode_request(Fence(5), request_id=2))
        driven.end_flush(0)
        for peer in ("pyomid", "java"):
            extended = is_extended(peer)
            driven.take(peer, encode_request(Begin(), request_id=3, extended=extended))
    assert fast.sent == plain.sent
    told = [decode_answer(payload).body for payload in payloads(fast.sent["pyomid"])]
    fences = [answer.fence_ts for answer in told if isinstance(answer, FenceReply)]
    assert [answer.fenced_ts for answer in told if isinstance(answer, BeginReply)] == [0, *fences]


def test_a_seal_met_by_the_flush_aborts_only_that_commit() -> None:
    fast, plain = Fast(entries=280), Plain(entries=280)
    for driven in (fast, plain):
        driven.take("pyomid", b"".join(encode_request(Begin(), request_id=tag) for tag in (1, 2, 3)))
        starts = [EPOCH + 50, EPOCH + 100, EPOCH + 150]
        commits = [CommitRequest(start, (start,)) for start in starts]
        driven.take("pyomid", b"".join(encode_request(c, request_id=9 + i) for i, c in enumerate(commits)))
        driven.end_flush(0, frozenset({starts[1]}))
    assert fast.sent == plain.sent
    assert fast.facts() == plain.facts()


@pytest.mark.parametrize("seed", range(3))
def test_the_compiled_map_equals_the_reference_and_moves_whole(seed: int) -> None:
    rng = random.Random(seed)
    plain, compiled = BucketMap(28 * 7), CacheLineMap(28 * 7)
    pool = [rng.getrandbits(64) - (1 << 63) for _ in range(600)] + [0, -(1 << 63), (1 << 63) - 1]
    for ts in range(50, 400_000, 50):
        cell = rng.choice(pool)
        assert compiled.last_commit(cell) == plain.last_commit(cell)
        if rng.random() < 0.7:
            assert compiled.record(cell, ts) == plain.record(cell, ts)
        if ts in (500, 20_000):
            compiled = moved(plain)
        if ts == 10_000:
            plain.first_slots.clear()  # as in a map that has taken more than it remembers the places of
            compiled = moved(plain)
    assert compiled.entries == plain.entries


@pytest.mark.parametrize("seed", range(3))
def test_many_cells_at_once_are_the_same_cells_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    plain, compiled = BucketMap(28 * 7), CacheLineMap(28 * 7)
    pool = [rng.getrandbits(64) - (1 << 63) for _ in range(600)] + [0, -(1 << 63), (1 << 63) - 1]
    for ts in range(100, 20_000, 50):
        cells = rng.choices(pool, k=rng.randrange(30))
        start_ts = max(ts - rng.randrange(2_000), 50)
        one_by_one = [found for cell in cells if (found := plain.last_commit(cell)) > start_ts][:1] or [0]
        assert [plain.first_conflict(cells, start_ts)] == one_by_one
        assert [compiled.first_conflict(cells, start_ts)] == one_by_one
        assert compiled.record_all(cells, ts) == plain.record_all(cells, ts)
    assert {cell: compiled.last_commit(cell) for cell in pool} == {cell: plain.last_commit(cell) for cell in pool}


# ── the parser ───────────────────────────────────────────────────────────────────────────────────────────────────────


def parsed_by_kernel(payload: bytes) -> ReceivedRequest | None:
    """What the kernel made of it; None where it hands the frame back."""
    data = np.frombuffer(bytearray(payload) or bytearray(1), dtype=np.uint8)
    ops = Op.array(1)
    cells, tables = np.full(len(payload) + 1, 77, np.int64), np.full(len(payload) + 1, 77, np.int64)
    kind = parse_frame(data, 0, len(payload), ops, cells, tables)
    op = ops[0]
    tag = int(op["tag"]) & 0xFFFF_FFFF_FFFF_FFFF
    if kind == BEGIN:
        return ReceivedRequest(tag, Begin(int(op["ts"])))
    ids = tuple(cells[op["cell_begin"] : op["cell_end"]].tolist())
    if kind != COMMIT:
        return None
    return ReceivedRequest(
        tag,
        CommitRequest(
            int(op["ts"]),
            ids,
            tuple(tables[op["table_begin"] : op["table_end"]].tolist()),
        ),
    )


def agrees(payload: bytes) -> bool:
    """The kernel took it, and as the plain decoder does; or handed it back. Returns whether it took it."""
    ours = parsed_by_kernel(payload)
    if ours is None:
        return False
    assert decode_request(payload) == ours, payload.hex()
    return True


@pytest.mark.parametrize("padding", range(9))
def test_a_padded_tag_or_length_is_parsed_as_the_reference_decodes_it(padding: int) -> None:
    """Protobuf refuses tags and lengths of more than five bytes; numbers may have ten."""
    begin = encode_request(Begin(700), request_id=9)[4:]
    commit = encode_request(CommitRequest(50, (3, 4), (5,)), request_id=9)[4:]
    for payload in (begin, commit):
        for place, byte in enumerate(payload):
            if byte < 0x80:
                padded = payload[:place] + bytes([byte | 0x80]) + b"\x80" * padding + b"\0" + payload[place + 1 :]
                try:
                    expected = decode_request(padded)
                except ProtocolError:
                    expected = None
                assert parsed_by_kernel(padded) in (None, expected), padded.hex()


int64s = st.integers(-(1 << 63), (1 << 63) - 1) | st.sampled_from([0, -1, -(1 << 63), (1 << 63) - 1])
unknown_fields = st.one_of(
    st.builds(lambda n, v: field_of(n, 0, varint(v)), st.integers(5, 63) | st.integers(71, 500), int64s),
    st.builds(lambda n, b: field_of(n, 1, b), st.integers(5, 63), st.binary(min_size=8, max_size=8)),
    st.builds(lambda n, b: field_of(n, 5, b), st.integers(5, 63), st.binary(min_size=4, max_size=4)),
    st.builds(lambda n, b: field_of(n, 2, block(b)), st.integers(5, 63), st.binary(max_size=20)),
)
commit_fields = st.one_of(
    st.builds(lambda v: field_of(1, 0, varint(v)), int64s),
    st.builds(lambda v: field_of(3, 0, varint(v)), int64s),
    st.builds(lambda v: field_of(4, 0, varint(v)), int64s),
    st.builds(lambda n, vs: field_of(n, 2, block(b"".join(map(varint, vs)))),
              st.sampled_from([3, 4]), st.lists(int64s, max_size=12)),
)  # fmt: skip
anything = (
    commit_fields
    | unknown_fields
    | st.builds(lambda n, v: field_of(n, 0, varint(v)), st.sampled_from([2, 64, 65]), st.integers(0, 3))
)


def requests_of(inner: st.SearchStrategy[bytes], *, field: int = 2) -> st.SearchStrategy[bytes]:
    request = st.lists(inner, max_size=8).map(b"".join).map(lambda b: field_of(field, 2, block(b)))
    tag = st.integers(0, (1 << 64) - 1).map(lambda v: field_of(64, 0, varint(v)))
    around = st.lists(tag, max_size=2).map(b"".join)
    return st.builds(lambda a, b, c: a + b + c, around, request, around)


@given(requests_of(commit_fields))
@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_ordinary_commits_are_parsed_like_the_decoder(payload: bytes) -> None:
    assert agrees(payload), payload.hex()


TAKEN = {
    "timestamp_request": ("not_before",),
    "commit_request": ("start_timestamp", "is_retry", "cell_id", "table_id"),
}
"""The fields that the kernel reads, by the kind of request. Around each of them it reads a request_id."""
WIRE_TYPES = {0: b"\x00", 1: b"\x00" * 8, 2: b"\x00", 5: b"\x00" * 4}


@pytest.mark.parametrize("kind", TAKEN)
def test_a_field_that_the_kernel_does_not_read_goes_to_the_decoder(kind: str) -> None:
    """Of whatever number and wire type, known to the protocol or not, in a request or beside it."""
    number = pb.Request.DESCRIPTOR.fields_by_name[kind].number
    inner = pb.Request.DESCRIPTOR.fields_by_name[kind].message_type
    names = {field.number: field.name for field in inner.fields}
    around = {field.number: field.name for field in pb.Request.DESCRIPTOR.fields}
    for other, (wire_type, value) in itertools.product((*range(1, 130), 500, (1 << 29) - 1), WIRE_TYPES.items()):
        field = field_of(other, wire_type, value)
        within = field_of(number, 2, block(field))
        assert not agrees(within) or names.get(other) in TAKEN[kind], (other, wire_type)
        for beside in (field_of(number, 2, b"\x00") + field, field + field_of(number, 2, b"\x00")):
            assert not agrees(beside) or around.get(other) == "request_id", (other, wire_type)
    for name in TAKEN[kind]:
        field = field_of(inner.fields_by_name[name].number, 0, b"\x00")
        assert agrees(field_of(number, 2, block(field)) + field_of(64, 0, b"\x01")), name


@given(requests_of(anything), st.data())
@settings(max_examples=examples(300), deadline=None)
def test_damaged_requests_are_parsed_like_the_decoder_or_left_to_it(payload: bytes, data: st.DataObject) -> None:
    mutated = bytearray(payload)
    for _ in range(data.draw(st.integers(0, 3))):
        if mutated:
            at = data.draw(st.integers(0, len(mutated) - 1))
            change: Callable[[], None] = data.draw(
                st.sampled_from(
                    [
                        lambda at=at: mutated.__setitem__(at, mutated[at] ^ 1 << (at % 8)),
                        lambda at=at: mutated.__delitem__(slice(at, None)),
                        lambda at=at: mutated.insert(at, 0xFF),
                    ]
                )
            )
            change()
    agrees(bytes(mutated))


@given(st.binary(max_size=200))
@example(b"")
@example(b"\x0a\x00")
@example(b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")
@example(b"\x12\x0b\x18" + b"\xff" * 10)
@example(b"\x12\x0c\x18" + b"\xff" * 9 + b"\x02")
@settings(max_examples=examples(500), deadline=None)
def test_garbage_is_never_taken_for_something_else(payload: bytes) -> None:
    agrees(payload)


@given(st.lists(st.binary(max_size=40), max_size=6), st.integers(0, 50))
@settings(max_examples=examples(150), deadline=None)
def test_a_chunk_of_garbage_stops_at_the_first_frame_that_is_not_the_kernels(garbage: list[bytes], cut: int) -> None:
    """What lies before it is decided once, nothing is read beyond the chunk, nothing is lost."""
    fast = Fast(entries=280)
    good = encode_request(Begin(), request_id=1)
    data = b"".join(good + frame(each) for each in garbage) + good[: cut % (len(good) + 1)]
    chunk = np.frombuffer(bytearray(data) or bytearray(1), dtype=np.uint8)
    at = 0
    while True:
        decided = fast.fast.decide(chunk, at, len(data), peer="pyomid", extended=True)
        assert at <= decided.consumed <= len(data)
        at = decided.consumed
        if decided.status == DONE:
            break
        if decided.status == RARE_FRAME:
            payload = payloads(data[at:])[0]
            with contextlib.suppress(ProtocolError):
                decode_request(payload)
            at += HEADER_BYTES + len(payload)
    assert len(data) - at < len(good)


@pytest.mark.parametrize("seed", range(5))
def test_long_requests_are_parsed_as_the_decoder_does(seed: int) -> None:
    """Else one frame of ten megabytes holds everybody up for as long as its ids take as objects."""
    rng = random.Random(seed)
    ids = tuple(rng.getrandbits(rng.choice([7, 40, 64])) - (1 << 63) * rng.randrange(2) for _ in range(5000))
    ids = tuple(max(-(1 << 63), min(number, (1 << 63) - 1)) for number in ids)
    for request in (
        CommitRequest(50, ids, (1, -2, 3)),
        CommitRequest(-50, (), ids),
        CommitRequest(50, ids, is_retry=True),
        CommitRequest(50, ids, branches=(100,)),
        Seal(ids),
        Begin(7),
    ):
        request_id = (0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)[seed]
        payload = encode_request(request, request_id=request_id)[HEADER_BYTES:]
        for sent in (payload, payload[:-1], payload + payload, payload[: len(payload) // 2]):
            parsed = CompiledOracle.parsed(sent)
            if parsed is None:
                continue
            told = decode_request(sent)
            assert parsed.request_id == told.request_id
            assert isinstance(parsed.body, CommitRequest)
            cells = tuple(int(number) for number in parsed.body.cell_ids)
            assert replace(parsed.body, cell_ids=cells) == told.body
        is_plain = isinstance(request, CommitRequest) and not request.is_retry and not request.branches
        assert (CompiledOracle.parsed(payload) is not None) == is_plain


def test_rows_of_dropped_tables_are_reused() -> None:
    """A TSO lives for months, and some programs make and drop a table in each run."""
    tables = TableRows()
    tables.set_decidable([-1, 7])
    fenced = TableColumn(tables, "fence_ts")
    for table_id in range(1000, 6000):
        fenced[table_id] = 50
        del fenced[table_id]
    fenced[7] = 50
    assert len(tables.rows) == 64
    tables.set_decidable([7])
    assert dict(fenced) == {7: 50}


def test_a_table_whose_row_was_reused_is_settled_like_others() -> None:
    """Else each of its commits takes the slow path, for as long as the list of tables stays the same."""
    tables = TableRows()
    table_ids = list(range(1, 500))
    tables.set_decidable(table_ids)
    assert sorted(tables.rows["table_id"][tables.rows["is_known"] == 1].tolist()) == table_ids
