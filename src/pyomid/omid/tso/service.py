"""The TSO's service: an event loop that drives the machine, and store calls on threads.

    peers' bytes ─► Connection ─► events ─┐
    store calls ─► results ───────────────┼─► machine.handle ─► replies, one write per peer
    ticks ────────────────────────────────┘                 ├─► flushes ─► CommitTable.submit
                                                            └─► other store calls ─► threads

The loop never waits for a store. The instruction `Die` ends the process at once.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from functools import partial
from typing import Final, cast

from pyomid.errors import OmidError, Unavailable
from pyomid.omid.oracle.chunk_oracle import ChunkOracle
from pyomid.omid.oracle.instructions import (
    Die,
    Event,
    Flush,
    Flushed,
    Instruction,
    PeerGone,
    Reply,
    SendEncoded,
    StoreCall,
    StoreDone,
    StoreFailed,
)
from pyomid.omid.oracle.machine import TsoMachine
from pyomid.omid.oracle.native.compiled_oracle import CompiledOracle
from pyomid.omid.oracle.native.memory import populate
from pyomid.omid.tso.logs import BoundedLog
from pyomid.omid.tso.peer import Connection, PeerLimits, ReceiveBuffer
from pyomid.omid.tso.store_calls import Durations, Flushes, TsoStores, as_failure, perform
from pyomid.omid.tso.unauthenticated import Acceptor, UnauthenticatedPeers
from pyomid.omid.wire.messages import Answer
from pyomid.ports import Clock
from pyomid.protocol.timestamps import clock_trouble

log = logging.getLogger(__name__)

RECEIVE_BYTES: Final = 256 << 10
"""The size of a chunk: the most bytes of one peer that compiled code processes in one call."""

FRESH_S: Final = 0.004
"""If the machine's last step is older than this, the machine makes another step before the next chunk, to get the
time."""

TICKS_PER_STALL: Final = 4
"""How many ticks fit into `stall_s_max`, the gap between two steps that counts as a stall."""

UNAUTHENTICATED_SHARE: Final = 4
UNAUTHENTICATED_MIN: Final = 64
"""The most peers without a handshake: a quarter of all connections, or this number if that is more."""

ROOM_TO_REFUSE: Final = 16
"""Connections above the maximum, for peers whose handshake is answered with an error."""

TURN_S: Final = 0.001
"""The pause before the next turns while all waiting peers skip theirs."""

TURNS_AT_ONCE: Final = 4

COMMIT_RETRY_S_MAX: Final = 24 * 3600.0
"""An announced retry time that is longer than this is ignored."""

STORE_THREADS_BESIDE_FLUSHES: Final = 3
"""The number of threads for store calls other than flushes."""


class TsoService:
    """Serves one machine on any number of listening sockets until `stop` ends it."""

    def __init__(
        self,
        machine: TsoMachine,
        stores: TsoStores,
        *,
        clock: Clock,
        die: Callable[[str], None],
        limits: PeerLimits | None = None,
        connections_max: int = 10_000,
        held_bytes_max: int = 1 << 30,
        token: bytes = b"",
        lease_until_s: Callable[[], float] = lambda: float("inf"),
    ) -> None:
        self.machine = machine
        self._lease_until_s = lease_until_s
        """Returns until when this process leads. It is called before each step of the machine."""
        self.token = token
        self._stores = stores
        self._clock = clock
        self._die = die
        self._limits = limits or PeerLimits()
        self._connections_max = connections_max
        self._held_bytes_max = held_bytes_max
        self.peer_log = BoundedLog(log, clock=clock)
        """Limits the log lines that peers cause."""
        self._late_commits = 0
        self._clock_trouble: Set[str] = frozenset()
        self._connections: set[Connection] = set()
        self._flushes = Flushes(
            stores.commit_table,
            stores.leader_state,
            threads_max=machine.settings.flushes_in_flight_max + STORE_THREADS_BESIDE_FLUSHES,
            fail=self.fail,
        )
        self._acceptors: dict[socket.socket, Acceptor] = {}
        self._unauthenticated = UnauthenticatedPeers(max(UNAUTHENTICATED_MIN, connections_max // UNAUTHENTICATED_SHARE))
        self.receive = ReceiveBuffer(RECEIVE_BYTES)
        self.chunk_oracle: ChunkOracle | None = None
        """Decides chunks of ordinary begins and commits. It is None until `switch_to_native`; until then every request
        takes the slow path."""
        self.peers_with_replies: list[Connection] = []
        """The peers with encoded replies that are not yet written."""
        self._turns: deque[Connection] = deque()
        """Peers that wait for a turn to continue with their requests."""
        self._is_turn_due = False
        self._is_finish_due = False
        self._ended_flushes: list[Event] = []
        """The ends of flushes that the machine does not know yet; the next `_finish_step` passes them on."""
        self._call_soon: Callable[[Callable[[], None]], object] | None = None
        """The event loop's `call_soon`."""
        self._stopping = asyncio.Event()
        self._serving = False
        self.flush_seconds = Durations()
        self._tick_s = machine.settings.stall_s_max / TICKS_PER_STALL

    @property
    def is_serving(self) -> bool:
        """Whether the service listens and the machine is alive, for health checks."""
        return self._serving and not self._stopping.is_set() and not self.machine.dead

    def now_s(self) -> float:
        return self._clock()

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def run(
        self,
        listeners: Sequence[tuple[socket.socket, ssl.SSLContext | None]],
        *,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        """Serve the sockets, which must be bound, until `stop`. `ready` is called once the service accepts
        connections."""
        self._serving = True
        for sock, tls in listeners:
            self.listen(sock, tls)
        ready()
        while not self._stopping.is_set():
            self._tick()
            try:
                async with asyncio.timeout(self._tick_s):
                    await self._stopping.wait()
            except TimeoutError:
                continue

    def listen(self, sock: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Serve one more socket, which must be bound."""
        handshake_s_max = self._limits.handshake_s_max
        self._acceptors[sock] = Acceptor(
            sock, tls, admit=self._admit, make_room=self._make_room, handshake_s_max=handshake_s_max
        )

    def stop(self) -> None:
        """End `run`, even before it has begun. A signal handler of the loop may call it."""
        self._stopping.set()

    async def drain(self, *, drain_s_max: float = 10.0) -> bool:
        """After `run`: take no new requests, make all decisions durable, and send their replies. Returns False after a
        timeout."""
        for acceptor in self._acceptors.values():
            acceptor.close()
        for connection in self._connections:
            connection.stop_reading()
        deadline_s = self._clock() + drain_s_max
        self.feed([])  # the machine learns what the compiled oracle decided
        while (self._turns or not self.machine.is_quiet) and self._clock() < deadline_s:
            self.feed([])
            await asyncio.sleep(0.005)
        self._write_replies()
        for connection in list(self._connections):
            connection.close()
        while (self._connections or not self.machine.is_quiet) and self._clock() < deadline_s:
            self.feed([])  # a client that disconnected may have held back W
            await asyncio.sleep(0.005)
        self._flushes.close(wait=self.machine.is_quiet)
        return self.machine.is_quiet

    # ── connections ──────────────────────────────────────────────────────────────────────────────────────────────

    def _admit(self, address: str) -> Connection | None:
        """Return the connection of an accepted peer. If there are too many connections, another peer without a
        handshake is closed. If there is no such peer, return None; then the caller closes the new peer.
        `check_capacity` follows at the handshake."""
        unauthenticated = self._unauthenticated
        is_full = len(self._connections) >= self._connections_max + ROOM_TO_REFUSE
        if (is_full or len(unauthenticated) >= unauthenticated.peers_max) and not self._make_room():
            self.peer_log.warning(
                "connections", f"refused a connection: {self._connections_max} are open already", peer=address
            )
            self.machine.count("refused_connections")
            return None
        connection = Connection(self, self._limits, address)
        self._connections.add(connection)
        unauthenticated.add(connection, address)
        return connection

    def _make_room(self) -> bool:
        """Cut off a peer without a handshake, from the address that has the most of them. Returns False if there is
        none."""
        peer = self._unauthenticated.peer_to_close()
        if peer is None:
            return False
        self.peer_log.warning("unauthenticated", "cut off a peer without a handshake, to make room", peer=peer.address)
        self.machine.count("refused_connections")
        self._unauthenticated.remove(peer, peer.address)
        self._connections.discard(peer)
        peer.abort()
        return True

    def check_capacity(self) -> None:
        """Raise `Unavailable` if there are too many connections to serve one more peer that has sent its handshake."""
        served = len(self._connections) - len(self._unauthenticated)
        if served >= self._connections_max:
            raise Unavailable(
                f"the TSO has {served} connections, and its maximum is {self._connections_max}: close some "
                "connections, or raise the TSO's option --connections (or ulimit -n, if that limit is lower)",
                connections=served,
            )

    def handshake_done(self, connection: Connection) -> None:
        """Count the peer as authenticated."""
        self._unauthenticated.remove(connection, connection.address)

    def disconnected(self, connection: Connection) -> None:
        """Forget a connection that ended, and notify the machine."""
        self._connections.discard(connection)
        self._unauthenticated.remove(connection, connection.address)
        self.feed([PeerGone(connection)])

    def note_commit_retry(self, commit_retry_s: float) -> None:
        """Record how long a client may retry a commit. `status` reports the longest such time, because a sanitizer
        relies only on region watermarks that are older."""
        if 0 < commit_retry_s <= COMMIT_RETRY_S_MAX:
            self.machine.note_longest("commit_retry_ms_max", int(commit_retry_s * 1000))

    # ── turns ────────────────────────────────────────────────────────────────────────────────────────────────────

    def wait_for_turn(self, connection: Connection) -> None:
        """Queue a peer that sent more slow-path work than one turn allows. Requests of other peers come first."""
        self._turns.append(connection)
        self._turn_soon()

    def _turn_soon(self) -> None:
        if self._turns and not self._is_turn_due:
            self._is_turn_due = True
            loop = asyncio.get_running_loop()
            if all(connection.owes_work for connection in self._turns):
                loop.call_later(TURN_S, self._take_turns)
            else:
                loop.call_soon(self._take_turns)

    def _take_turns(self) -> None:
        """Let a few peers take their turns. Then the loop reads from all peers before the next turns."""
        self._is_turn_due = False
        worked = 0
        try:
            for _ in range(len(self._turns)):
                connection = self._turns.popleft()
                worked += not connection.owes_work
                if connection.take_turn():
                    self._turns.append(connection)
                if worked == TURNS_AT_ONCE:
                    break
            self._turn_soon()
        except Exception as error:
            self.fail(error)

    # ── the fast path ────────────────────────────────────────────────────────────────────────────────────────────

    def switch_to_native(self, *, wait_for_memory: bool = False) -> None:
        """Let compiled code decide ordinary begins and commits from now on."""
        self.chunk_oracle = switch_to_native(
            self.machine, chunk_bytes_max=RECEIVE_BYTES, wait_for_memory=wait_for_memory
        )

    def may_use_oracle(self) -> bool:
        """Return whether the compiled oracle may take a chunk now. Once per loop step, this also passes the time to the
        machine."""
        if not self._is_finish_due:
            now_s = self._clock()
            if now_s - self.machine.step.now_s >= FRESH_S or now_s >= self.machine.serve_until_s:
                self.feed([])
            else:
                self.machine.notice_wall_clock(now_s, time.time_ns())
        return self.machine.may_decide_fast

    def finish_step_soon(self) -> None:
        """Schedule `_finish_step` to run after the loop has read everything that is readable now."""
        if not self._is_finish_due:
            self._is_finish_due = True
            if self._call_soon is None:
                self._call_soon = asyncio.get_running_loop().call_soon
            self._call_soon(self._finish_step)

    def _finish_step(self) -> None:
        """End a loop step: flush its commits, then send its replies and those of ended flushes, in one write per
        peer."""
        self._is_finish_due = False
        try:
            ended, self._ended_flushes = self._ended_flushes, []
            self.feed(ended)
            self._write_replies()
        except Exception as error:
            self.fail(error)

    def _write_replies(self) -> None:
        """Write the encoded replies, unless the TSO is in doubt about its leadership: only a leader may answer begins
        (T4)."""
        if self.machine.step.in_doubt or self.machine.dead:
            return
        if self.peers_with_replies:
            peers_with_replies, self.peers_with_replies = self.peers_with_replies, []
            for connection in peers_with_replies:
                connection.write_replies()

    # ── the machine ──────────────────────────────────────────────────────────────────────────────────────────────

    def feed(self, events: Sequence[Event]) -> None:
        """Make one step of the machine, and perform the instructions that it returns."""
        try:
            self.machine.serve_until_s = self._lease_until_s()
            self._perform(self.machine.handle(events, self._clock(), time.time_ns()))
            if self.machine.step.has_more_begins:
                self.finish_step_soon()
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """T11: exit without another reply after an unexpected error, because the state is unknown. A client starts the
        next TSO, or a standby takes over."""
        self.machine.dead = True
        with suppress(Exception):  # exit even without memory for a log line
            log.critical("died of an unexpected error", exc_info=error, extra={"epoch": self.machine.epoch})
        self._die(type(error).__name__)

    def _tick(self) -> None:
        try:
            self._do_periodic_work()
        except Exception as error:
            self.fail(error)

    def _do_periodic_work(self) -> None:
        self.feed([])
        now_s = self._clock()
        self._cut_off_slow_peers(now_s)
        self._cut_off_memory_hogs()
        self._log_late_commits()
        self._log_clock_trouble()
        self.peer_log.log_counts(now_s)

    def _cut_off_slow_peers(self, now_s: float) -> None:
        for connection in list(self._connections):
            overdue = connection.overdue(now_s)
            if overdue:
                self.peer_log.warning("slow peer", f"cut off a peer that {overdue}", peer=connection.name)
                self.machine.count("overdue_peers")
                connection.abort()

    def _cut_off_memory_hogs(self) -> None:
        """If unfinished requests and unread replies take too much memory, cut off the peers that hold the most."""
        held = {connection: connection.held_bytes for connection in self._connections}
        total = sum(held.values())
        if total <= self._held_bytes_max:
            return
        for connection in sorted(held, key=held.__getitem__, reverse=True):
            message = f"cut off a peer that holds {held[connection]} bytes"
            self.peer_log.warning("memory hog", message, peer=connection.name)
            self.machine.count("memory_hogs")
            connection.abort()
            total -= held[connection]
            if total <= self._held_bytes_max // 2:
                return

    def _log_late_commits(self) -> None:
        """Log how many more commits were aborted because they began at or below the low watermark."""
        count = self.machine.report().counters["aborts_low_watermark"]
        if count > self._late_commits:
            text = "commits were aborted because they began at or below the low watermark"
            self.peer_log.count("late", count - self._late_commits, text)
            self._late_commits = count

    def _log_clock_trouble(self) -> None:
        """Log once that timestamps no longer follow the wall clock, and once that they follow it again (T3)."""
        found = self.machine.clock_trouble()
        if found.keys() != self._clock_trouble:
            self._clock_trouble = found.keys()
            log.warning(
                "%s",
                clock_trouble(found, self.machine.report().last_ts) or "timestamps agree with the wall clock again",
            )

    def _perform(self, instructions: list[Instruction]) -> None:
        answers: defaultdict[Connection, list[tuple[int, Answer]]] | None = None
        for instruction in instructions:
            match instruction:
                case SendEncoded(replies):
                    cast("Connection", replies.peer).add_replies(replies)
                case Reply(peer, tag, answer):
                    assert isinstance(peer, Connection)
                    answers = defaultdict(list) if answers is None else answers
                    answers[peer].append((tag, answer))
                case StoreCall(delay_s=0.0):
                    self._start(instruction)
                case StoreCall(delay_s=delay_s):
                    asyncio.get_running_loop().call_later(delay_s, self._start, instruction)
                case Die(reason):
                    log.error("died: %s", reason, extra={"epoch": self.machine.epoch})
                    self._die(reason)
        if answers is not None:
            for connection, answered in answers.items():
                connection.send(answered)
        if not self._is_finish_due:
            self._write_replies()

    def _start(self, call: StoreCall) -> None:
        try:
            if isinstance(call.operation, Flush):
                self._flushes.submit(call.operation, partial(self._flush_ended, call, self._clock()))
            else:
                self._flushes.on_thread(partial(perform, self._stores, call.operation), partial(self._ended, call))
        except Exception as error:
            self.fail(error)

    def _flush_ended(self, call: StoreCall, began_s: float, result: Flushed | OmidError) -> None:
        """Note the end of a flush. Before the next flush begins, the loop reads what is readable, so that it takes
        those commits too."""
        self.flush_seconds.add(self._clock() - began_s)
        self._ended_flushes.append(
            StoreFailed(call.token, result) if isinstance(result, OmidError) else StoreDone(call.token, result)
        )
        self.finish_step_soon()

    def _ended(self, call: StoreCall, result: object) -> None:
        if isinstance(result, Exception):
            self.feed([StoreFailed(call.token, as_failure(result, type(call.operation).__name__))])
        else:
            self.feed([StoreDone(call.token, result)])


def switch_to_native(machine: TsoMachine, *, chunk_bytes_max: int, wait_for_memory: bool = False) -> CompiledOracle:
    """Return the machine's compiled oracle, ready to decide. Call it on the machine's own thread.

    A thread touches the conflict map's memory, so that the system provides it. With `wait_for_memory`, wait for that
    thread. Until it has finished, decisions may be slow: in a virtual machine we measured 6 ms for 2 MiB of fresh
    memory.
    """
    compiled = CompiledOracle(machine.state, chunk_bytes_max=chunk_bytes_max)
    memory = threading.Thread(target=populate, args=(compiled.map_words,), daemon=True)
    try:
        memory.start()
    except RuntimeError:  # the system refused another thread
        populate(compiled.map_words)
    else:
        if wait_for_memory:
            memory.join()
    return compiled
