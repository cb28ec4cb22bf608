"""The compiled oracle says what its reference says, chunk by chunk, whatever lies between the chunks."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable

import numpy as np
import pytest

from pyomid.omid.oracle.instructions import (
    DeleteBelow,
    Event,
    Flush,
    Flushed,
    Instruction,
    LookupEntries,
    MarkUnknownTable,
    PeerGone,
    PutBranches,
    PutDecision,
    ReadEpoch,
    ReadTables,
    RequestCame,
    SealEntries,
    StoreCall,
    StoreDone,
    UpdateLeaderState,
)
from pyomid.omid.oracle.machine import TsoMachine
from pyomid.omid.oracle.native.compiled_oracle import CompiledOracle
from pyomid.omid.oracle.settings import TsoSettings
from pyomid.omid.oracle.takeover import TakenOver
from pyomid.omid.wire.codec import encode_request
from pyomid.omid.wire.messages import Begin, EndLease, Fence, GrantLease, Request, Seal
from pyomid.types import NOT_FOUND, TIMESTAMP_STEP, CommitRequest, SealOutcome, WriteSetLevel
from simulation.mirror import MirrorOracle

pytestmark = pytest.mark.fast

EPOCH = 1_000_000
TABLES = (11, -7, 1 << 62, *range(100, 180))
EDGES = (0, -1, -(1 << 63), (1 << 63) - 1)
PEERS = ("java", "pyomid", "another")


def is_extended(peer: Hashable) -> bool:
    return peer != "java"


class Stage:
    """A mirror, time, and a store that does what it is told when the test says so."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.settings = TsoSettings(
            conflict_map_entries=rng.choice([28, 28 * 20, 28 * 400]),
            window_starts=rng.choice([1, 16, 64, 64]),
            batch_entries_max=rng.choice([7, 100, 5000]),
            write_set_fraction_max=1.0,
            max_transaction_age_s=1.0,
            watermark_interval_s=0.05,
            tables_interval_s=1.0,
            stall_s_max=0.5,
        )
        self.pool = [rng.getrandbits(64) - (1 << 63) for _ in range(rng.choice([30, 2000]))] + list(EDGES)
        self.mirror = MirrorOracle(self.machine(), is_extended)
        self.now_s = 0.0
        self.calls: list[StoreCall] = []
        self.committed: dict[int, int] = {}
        self.sealed: set[int] = set()

    def machine(self) -> TsoMachine:
        taken_over = TakenOver(EPOCH, EPOCH + 10**12, EPOCH, 0, frozenset())
        return TsoMachine(self.settings, taken_over, now_s=0.0, known_tables=TABLES)

    def start(self) -> int:
        """One that was handed out lately; now and then none at all."""
        newest = self.mirror.machine.state.newest_start
        start = self.rng.randrange(max(EPOCH, newest - 400 * TIMESTAMP_STEP), newest + 1)
        start -= start % TIMESTAMP_STEP
        return start + self.rng.choice([1, 50 * 10**6, -start, 25]) if self.rng.random() < 0.02 else start

    def request(self, peer: str) -> Request:
        rng, kind = self.rng, self.rng.random()
        machine = self.mirror.machine
        if kind < 0.4:
            above = (
                machine.state.clock.last_issued,
                machine.state.newest_start,
                machine.state.clock.last_issued + 50,
                -1,
            )
            return Begin(rng.choice([0] * 12 + list(above)) if is_extended(peer) else 0)
        if kind < 0.94 or not is_extended(peer):
            size = rng.choice([0, 1, 2, 6, 12, 12, rng.randrange(300)])
            tables = rng.sample(TABLES, rng.choice([0, 0, 0, 1, 2, 40]))
            tables += [999] * (rng.random() < 0.01)
            ids = tuple(rng.choice(self.pool) for _ in range(size))
            return CommitRequest(self.start(), ids, tuple(tables))
        if kind < 0.95:
            return CommitRequest(self.start(), (7,), (11,), is_retry=True)
        if kind < 0.955:
            return CommitRequest(self.start(), (), (-7,), level=WriteSetLevel.TABLE)
        if kind < 0.96 and rng.random() < 0.3:
            return CommitRequest(self.start(), (rng.choice(self.pool),), (11,), (self.start(),))
        if kind < 0.965:
            return Fence(rng.choice(TABLES))
        if kind < 0.975:
            return rng.choice([GrantLease(self.start()), GrantLease(self.start(), shared=True), EndLease(self.start())])
        return Seal(tuple({self.start() for _ in range(rng.randrange(1, 4))}))

    def chunk(self) -> None:
        peer = self.rng.choice(PEERS)
        data = b"".join(
            encode_request(self.request(peer), request_id=tag if is_extended(peer) else 0, extended=is_extended(peer))
            for tag in range(1, self.rng.randrange(2, 60))
        )
        self.note(self.mirror.take(peer, data, self.now_s))

    def handle(self, *events: Event) -> None:
        self.note(self.mirror.handle(events, self.now_s))

    def note(self, instructions: list[Instruction]) -> None:
        for each in instructions:
            assert isinstance(each, StoreCall), each
            self.calls.append(each)

    def end_a_call(self) -> None:
        """Of those under way, any; changes of the leader state among them, and so does W move."""
        call = self.calls.pop(self.rng.randrange(len(self.calls)))
        self.handle(StoreDone(call.token, self.performed(call)))

    def end_calls(self) -> None:
        for _ in range(10_000):
            if not self.calls:
                return
            self.end_a_call()
        raise AssertionError("the store's calls never end")

    def performed(self, call: StoreCall) -> object:
        match call.operation:
            case Flush(entries, block):
                return Flushed(self.put([*entries, *([] if block is None else map(tuple, block.tolist()))]), EPOCH)
            case PutDecision(start_ts, commit_ts):
                return Flushed(self.put([(start_ts, commit_ts)]), EPOCH)
            case PutBranches() | ReadEpoch():
                return EPOCH
            case UpdateLeaderState():
                return EPOCH
            case LookupEntries(starts):
                return [self.committed.get(start, NOT_FOUND) for start in starts]
            case SealEntries(starts):
                self.sealed |= {start for start in starts if start not in self.committed}
                return [
                    SealOutcome(False, self.committed[start]) if start in self.committed else SealOutcome(True)
                    for start in starts
                ]
            case ReadTables():
                return frozenset(TABLES)
            case DeleteBelow():
                return 0
            case MarkUnknownTable():
                return None
        raise AssertionError(call)

    def put(self, rows: list[tuple[int, int]]) -> frozenset[int]:
        """Marks refuse theirs; some refusals come out of nothing, as where another TSO's client put one."""
        refused = frozenset(start for start, _ in rows if start in self.sealed or self.rng.random() < 0.01)
        self.committed.update(each for each in rows if each[0] not in refused)
        return refused


def run(seed: int, chunks: int = 40) -> Stage:
    stage = Stage(seed)
    for _ in range(chunks):
        stage.chunk()
        while stage.calls and stage.rng.random() < 0.75:
            stage.end_a_call()
        if stage.rng.random() < 0.3:
            stage.now_s += stage.rng.choice([0.001, 0.01, 0.1, 0.4, 0.4, 0.7])
            stage.handle()
        if stage.rng.random() < 0.01:
            stage.handle(PeerGone(stage.rng.choice(PEERS)))
    stage.end_calls()
    for start_ts in stage.mirror.machine.state.leases.starts:
        stage.handle(RequestCame("pyomid", 1, EndLease(start_ts)))
    for _ in range(6):
        stage.now_s += 0.4
        stage.handle()
        stage.end_calls()
    return stage


@pytest.mark.parametrize("seed", range(6))
def test_compiled_and_reference_oracle_agree_on_any_chunks(seed: int) -> None:
    mirror = run(seed).mirror
    print(seed, mirror.by_chunk, mirror.by_handle, mirror.machine.status())
    assert mirror.machine.step.counters["commits"] > 20, "nothing was compared"
    assert mirror.machine.state.watermarks.published > EPOCH, "W never moved"
    assert mirror.by_chunk > mirror.by_handle / 20, "hardly a chunk was decided"


@pytest.mark.soak
def test_compiled_and_reference_oracle_agree_for_long() -> None:
    for _ in range(100):
        seed = random.randrange(1 << 40)
        print("seed", seed)
        run(seed, chunks=200)


def no_rare_starts(oracle: CompiledOracle) -> None:
    tso, none = oracle._tso, np.zeros(0, dtype=np.int64)
    oracle._decider.work_on(tso.windows.head, oracle._batch, oracle._map.words, oracle._tables.rows, none)


def every_table_is_known(oracle: CompiledOracle) -> None:
    oracle._tables.rows["is_known"] = 1


def any_window_grows(oracle: CompiledOracle) -> None:
    oracle._chunk.may_widen = 1


def batches_without_end(oracle: CompiledOracle) -> None:
    oracle._chunk.row_count_max = 1 << 40


LIES = [no_rare_starts, every_table_is_known, any_window_grows, batches_without_end]


@pytest.mark.parametrize("lie", LIES)
def test_the_mirror_sees_what_the_compiled_oracle_is_not_told(
    lie: Callable[[CompiledOracle], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = CompiledOracle._prepare

    def prepare(oracle: CompiledOracle) -> None:
        honest(oracle)
        lie(oracle)

    monkeypatch.setattr(CompiledOracle, "_prepare", prepare)
    for seed in range(12):
        try:
            run(seed)
        except AssertionError:
            return
    raise AssertionError("nobody notices")
