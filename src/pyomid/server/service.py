"""The TSO as a process: an event loop that drives the machine, and store calls next to it.

    peers' bytes ─► Connection ─► events ─┐
    store calls ─► results ───────────────┼─► machine.handle ─► replies, one write a peer
    ticks ────────────────────────────────┘                 ├─► flushes ─► CommitTable.submit
                                                            └─► other store calls ─► threads

The loop itself waits for no store, except for the flush of the only client. The instruction `Die` ends the process at
once.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from pyomid.errors import OmidError
from pyomid.oracle.chunk_oracle import ChunkOracle
from pyomid.oracle.instructions import (
    Die,
    Event,
    Flush,
    Flushed,
    Instruction,
    PeerGone,
    ProcessEnded,
    Reply,
    SendEncoded,
    StoreCall,
    StoreDone,
    StoreFailed,
)
from pyomid.oracle.machine import TsoMachine
from pyomid.ports import Clock
from pyomid.server.ended_processes import EndedProcesses
from pyomid.server.flush import Durations, Flushes, as_failure, rows_of
from pyomid.server.logs import BoundedLog
from pyomid.server.peer import Connection, PeerLimits, ReceiveBuffer
from pyomid.server.store_calls import TsoStores, perform
from pyomid.server.unauthenticated import Acceptor, UnauthenticatedPeers
from pyomid.wire.messages import Answer

if TYPE_CHECKING:
    from pyomid.arrays import NDArray, np
    from pyomid.oracle.native.compiled_oracle import CompiledOracle
    from pyomid.server.native.socket_loop import SocketLoop, SocketReplies

log = logging.getLogger(__name__)

RECEIVE_BYTES: Final = 256 << 10
"""One chunk, of one peer: what one call of compiled code takes at most."""

FRESH_S: Final = 0.004
"""The machine is told the time before a chunk if it was told longer ago than this."""

TICKS_PER_STALL: Final = 4
"""Ticks in the time after which a gap between two steps counts as a stall."""

UNAUTHENTICATED_SHARE: Final = 4
UNAUTHENTICATED_MIN: Final = 64
"""Connections without a handshake: at most a quarter of all, or so many."""

TURN_S: Final = 0.001
"""How long a peer rests for each quantum of work that it had beyond its turn."""

TURNS_AT_ONCE: Final = 4

COMMIT_RETRY_S_MAX: Final = 24 * 3600.0
"""Upper bound for a client's announced retry time."""

STORE_THREADS_BESIDE_FLUSHES: Final = 3

ALL_READ, READ_SLOW_PATH, FINISH_ON_SLOW_PATH, NO_ROOM = 0, 1, 2, 4
"""Statuses of `server.native.sockets`, which a service without compiled code does not load."""


class TsoService:
    """Serves one machine on any number of listening sockets until `stop` or idleness ends it."""

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
        idle_exit_s: float = float("inf"),
        token: bytes = b"",
        lease_until_s: Callable[[], float] = lambda: float("inf"),
    ) -> None:
        self.machine = machine
        self._lease_until_s = lease_until_s
        """Until when this process leads, asked before each step of the machine."""
        self.token = token
        self._stores = stores
        self._clock = clock
        self._die = die
        self._limits = limits or PeerLimits()
        self._connections_max = connections_max
        self._held_bytes_max = held_bytes_max
        self.said = BoundedLog(log, clock=clock)
        """Log lines that peers cause, so that no peer chooses their number."""
        self._late_commits = 0
        self._idle_exit_s = idle_exit_s
        self._connections: set[Connection] = set()
        self._processes = EndedProcesses(clock, machine.settings.max_transaction_age_s)
        self._flushes = Flushes(
            stores.commit_table,
            stores.leader_state,
            threads_max=machine.settings.flushes_in_flight_max + STORE_THREADS_BESIDE_FLUSHES,
            fail=self.fail,
        )
        self._is_submitting = False
        self._acceptors: dict[socket.socket, Acceptor] = {}
        self._unauthenticated = UnauthenticatedPeers(max(UNAUTHENTICATED_MIN, connections_max // UNAUTHENTICATED_SHARE))
        self.receive = ReceiveBuffer(RECEIVE_BYTES)
        self.chunk_oracle: ChunkOracle | None = None
        """Decides chunks of plain begins and commits, after `switch_to_native`. Without one every request goes the slow
        path: a chunk decided in plain Python would keep other peers waiting."""
        self.socket_loop: SocketLoop | None = None
        """The native socket loop, after `switch_to_native`."""
        self._watches_socket_loop = False
        self.holding: list[Connection] = []
        """Peers with encoded answers that are not yet written."""
        self._turns: deque[Connection] = deque()
        """Peers whose requests wait for their turn."""
        self._is_turn_due = False
        self._is_finish_due = False
        self._call_soon: Callable[[Callable[[], None]], object] | None = None
        """`call_soon` of the event loop."""
        self._stopping = asyncio.Event()
        self._serving = False
        self.flush_seconds = Durations()
        self._idle_since_s = clock()
        self._tick_s = machine.settings.stall_s_max / TICKS_PER_STALL

    def count_up(self) -> None:
        """Adds what the compiled oracle counted to the machine's counters."""
        if self.chunk_oracle is not None:
            self.chunk_oracle.give_back()
            self.chunk_oracle.fold_counters()

    @property
    def is_serving(self) -> bool:
        """Whether it listens and the machine is alive, for health checks."""
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
        """Serves the (bound) sockets until it is stopped or idle; `ready` is called once it serves."""
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
        """Serves one more (bound) socket."""
        handshake_s_max = self._limits.handshake_s_max
        self._acceptors[sock] = Acceptor(
            sock, tls, arrive=self._arrive, make_room=self._make_room, handshake_s_max=handshake_s_max
        )

    def stop_listening(self, sock: socket.socket) -> None:
        """Its connections stay."""
        self._acceptors.pop(sock).close()

    def stop(self) -> None:
        """Ends `run`, also if it has not begun. May be called by a signal handler of the loop."""
        self._stopping.set()

    async def drain(self, *, drain_s_max: float = 10.0) -> bool:
        """After `run`: takes no new requests, and makes durable and answers what was decided. False if time ran out."""
        for acceptor in self._acceptors.values():
            acceptor.close()
        for connection in self._connections:
            connection.stop_reading()
        deadline_s = self._clock() + drain_s_max
        self.machine.note_time_now()
        self.feed([])  # the machine is told what the compiled oracle decided
        while (self._turns or not self.machine.is_quiet) and self._clock() < deadline_s:
            self.feed([])
            await asyncio.sleep(0.005)
        self._write_held()
        for connection in list(self._connections):
            connection.close()
        while self._connections and self._clock() < deadline_s:
            await asyncio.sleep(0.005)
        self._processes.close()
        self._flushes.close(wait=self.machine.is_quiet)
        if self.socket_loop is not None:
            if self._watches_socket_loop:
                asyncio.get_running_loop().remove_reader(self.socket_loop.fileno())
            self.socket_loop.close()
            self.socket_loop = None
        return self.machine.is_quiet

    # ── connections ──────────────────────────────────────────────────────────────────────────────────────────────

    def _arrive(self, address: str) -> Connection | None:
        """A place for an accepted peer. None if there are too many peers already and all of them had their handshake:
        the new one is closed, and no other peer notices."""
        unauthenticated = self._unauthenticated
        is_full = len(self._connections) >= self._connections_max
        if (is_full or len(unauthenticated) >= unauthenticated.peers_max) and not self._make_room():
            self.said.warning(
                "connections", f"refused a connection: there are {self._connections_max} already", peer=address
            )
            self.machine.count("refused_connections")
            return None
        connection = Connection(self, self._limits, address)
        self._connections.add(connection)
        unauthenticated.add(connection, address)
        return connection

    def _make_room(self) -> bool:
        """Cuts off a peer without handshake, of the address that has most of them. False if there is none."""
        peer = self._unauthenticated.who_gives_way()
        if peer is None:
            return False
        self.said.warning("unauthenticated", "cut off a peer without handshake, to make room", peer=peer.address)
        self.machine.count("refused_connections")
        self._unauthenticated.remove(peer, peer.address)
        self._connections.discard(peer)
        peer.abort()
        return True

    def welcome(self, connection: Connection) -> None:
        """Its handshake is done."""
        self._unauthenticated.remove(connection, connection.address)

    def connected(self, connection: Connection) -> None:
        """It has its transport: the service is not idle."""
        self._idle_since_s = self._clock()

    def disconnected(self, connection: Connection, sock: socket.socket | None = None) -> None:
        """`sock`: its socket, still open."""
        self._connections.discard(connection)
        self._unauthenticated.remove(connection, connection.address)
        self._idle_since_s = self._clock()
        self.feed([PeerGone(connection)])
        if sock is not None and self.machine.waits_for_process(connection) and self._processes.watch(connection, sock):
            self.feed([ProcessEnded(connection)])

    def note_commit_retry(self, commit_retry_s: float) -> None:
        """Keeps the longest time for which a client announced to repeat a commit, for `status`: a sanitizer uses no
        younger records."""
        if 0 < commit_retry_s <= COMMIT_RETRY_S_MAX:
            self.machine.note_longest("commit_retry_ms_max", int(commit_retry_s * 1000))

    # ── turns ────────────────────────────────────────────────────────────────────────────────────────────────────

    def wait_for_turn(self, connection: Connection) -> None:
        """It sent more slow-path work than one turn allows: other peers' requests come between."""
        self._turns.append(connection)
        self._turn_soon()

    def _turn_soon(self) -> None:
        if self._turns and not self._is_turn_due:
            self._is_turn_due = True
            loop = asyncio.get_running_loop()
            if all(connection.rests for connection in self._turns):
                loop.call_later(TURN_S, self._take_turns)
            else:
                loop.call_soon(self._take_turns)

    def _take_turns(self) -> None:
        """A few peers' turns; then the loop receives from all peers before the next turns."""
        self._is_turn_due = False
        worked = 0
        try:
            for _ in range(len(self._turns)):
                connection = self._turns.popleft()
                worked += not connection.rests
                if connection.take_turn():
                    self._turns.append(connection)
                if worked == TURNS_AT_ONCE:
                    break
            self._turn_soon()
        except Exception as error:
            self.fail(error)

    # ── native ───────────────────────────────────────────────────────────────────────────────────────────────────

    def switch_to_native(self, *, wait_for_memory: bool = False) -> None:
        """From now on compiled code decides plain begins and commits. It is loaded first, or compiled (20 s)."""
        from pyomid.server.native.switch import switch_to_native

        oracle = switch_to_native(self.machine, chunk_bytes_max=RECEIVE_BYTES, wait_for_memory=wait_for_memory)
        self.chunk_oracle = oracle
        self._use_socket_loop(oracle)
        self._flushes.prepare()

    def _use_socket_loop(self, oracle: CompiledOracle) -> None:
        from pyomid.server.native.socket_loop import SocketLoop

        self.socket_loop = SocketLoop(oracle, self.receive, outstanding_max=self._limits.requests_outstanding_max)

    def attach(self, connection: Connection, fileno: int) -> int | None:
        """The slot of a peer whose socket the native loop reads and writes from now on; None if all are taken."""
        assert self.socket_loop is not None
        if not self._watches_socket_loop:
            self._watches_socket_loop = True
            asyncio.get_running_loop().add_reader(self.socket_loop.fileno(), self._read_ready)
        return self.socket_loop.attach(connection, fileno, extended=connection.extended)

    def _read_ready(self) -> None:
        """Reads all attached peers that are ready, in one step."""
        socket_loop = self.socket_loop
        try:
            if socket_loop is None or not socket_loop.look():
                return
            may = self.may_decide()
            self._is_finish_due = True
            while (status := socket_loop.read(self.machine.step.now_s, slow_path=not may)) != ALL_READ:
                if status == NO_ROOM:
                    self._finish_step()
                else:
                    peer, begin, end = socket_loop.handed_back
                    if status == READ_SLOW_PATH:
                        peer.read_slow_path()
                    elif status == FINISH_ON_SLOW_PATH:
                        peer.finish_on_slow_path(begin, end)
                    else:
                        peer.stop_reading()
                self._is_finish_due = True
                may = self.machine.may_decide_fast
            self._finish_step()
        except Exception as error:
            self.fail(error)

    def may_decide(self) -> bool:
        """Whether the compiled oracle may take a chunk now. Tells the machine the time once a step of the loop."""
        if not self._is_finish_due:
            now_s = self._clock()
            if now_s - self.machine.step.now_s >= FRESH_S or now_s >= self.machine.serve_until_s:
                self.feed([])
        return self.machine.may_decide_fast

    def finish_step_soon(self) -> None:
        """Flushes after everything was read that is there to be read now."""
        if not self._is_finish_due:
            self._is_finish_due = True
            if self._call_soon is None:
                self._call_soon = asyncio.get_running_loop().call_soon
            self._call_soon(self._finish_step)

    def _finish_step(self) -> None:
        """After the step: its commits are flushed, its answers leave in one write a peer."""
        self._is_finish_due = False
        try:
            if not self._flush_at_once():
                self.feed([])
            self._write_held()
        except Exception as error:
            self.fail(error)

    def _flush_at_once(self) -> bool:
        """Submits the step's commits to the commit table, if nothing else is due. False if more is due."""
        now_s = self._caught_up()
        self._complete()
        entries = self.machine.start_plain_flush(now_s)
        if entries is None:
            return False
        if not len(entries):
            return True
        self._is_submitting = True
        try:
            self._submit(entries, partial(self._plain_flush_ended, now_s))
        finally:
            self._is_submitting = False
        return True

    def _submit(self, entries: NDArray[np.int64], ended: Callable[[Flushed | OmidError], None]) -> None:
        """The loop may wait for one commit of the only client: no begin would wait meanwhile, and to change threads, or
        steps of the loop, twice costs as much as the flush."""
        self._flushes.submit(entries, ended, may_wait=len(entries) == 1 and len(self._connections) == 1)

    def _complete(self) -> None:
        """Deletes entries of complete transactions, as far as that needs no wait. No answer leaves by it."""
        if not self.machine.may_complete:
            return
        starts = self.machine.take_completions()
        try:
            left = self._stores.commit_table.delete_at_once(starts)
        except OmidError:  # a store call meets it again, where errors are handled
            left = starts
        is_finish_due, self._is_finish_due = self._is_finish_due, True
        self._perform(self.machine.completed(len(starts) - len(left), left))
        self._is_finish_due = is_finish_due

    def _plain_flush_ended(self, began_s: float, result: Flushed | OmidError) -> None:
        """The next flush takes what was decided meanwhile, and what is there to be read now."""
        now_s = self._clock()
        self.flush_seconds.add(now_s - began_s)
        is_same_step = self._is_submitting and now_s - began_s < FRESH_S
        if not is_same_step:
            self._caught_up()
            if self.machine.is_step_due(now_s):  # a stall is noticed before anything is answered
                self.feed([])
        if isinstance(result, OmidError):
            self.machine.give_up_plain_flush()
            self.feed([])
        else:
            if not self._is_submitting:  # else it is the step that submitted it
                self.finish_step_soon()
            self._perform(self.machine.end_plain_flush(result))

    def _caught_up(self) -> float:
        """Tells the machine what the compiled oracle decided, and until when this process leads. Returns the time."""
        if self.chunk_oracle is not None:
            self.chunk_oracle.give_back()
        self.machine.serve_until_s = self._lease_until_s()
        return self._clock()

    def _write_held(self) -> None:
        """Only a process that leads answers begins (T4): in doubt they wait, as the machine's own answers do."""
        if self.machine.step.in_doubt or self.machine.dead:
            return
        if self.holding:
            holding, self.holding = self.holding, []
            for connection in holding:
                connection.write_held()
        if self.socket_loop is not None and self.socket_loop.has_ready:
            for connection in self.socket_loop.send():
                connection.write_rest()

    # ── the machine ──────────────────────────────────────────────────────────────────────────────────────────────

    def feed(self, events: Sequence[Event]) -> None:
        """One step of the machine, and everything it asks for."""
        try:
            now_s = self._caught_up()
            self._complete()
            self._perform(self.machine.handle(events, now_s, time.time_ns() // 1_000_000))
            if self.machine.step.has_more_begins:
                self.finish_step_soon()
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """T11: after an unforeseen error the state is unknown. The process ends without another
        answer; a client starts the next TSO, or a standby takes over."""
        self.machine.dead = True
        with suppress(Exception):  # without memory for a line in the log it ends all the same
            log.critical("died of an unforeseen error", exc_info=error, extra={"epoch": self.machine.epoch})
        self._die(type(error).__name__)

    def _tick(self) -> None:
        try:
            self._look_around()
        except Exception as error:
            self.fail(error)

    def _look_around(self) -> None:
        self.feed([ProcessEnded(connection) for connection in self._processes.take_ended()])
        self.count_up()
        now_s = self._clock()
        self._cut_off_slow_peers(now_s)
        self._cut_off_memory_hogs()
        self._tell_of_late_commits()
        self.said.tell(now_s)
        self._exit_if_idle(now_s)

    def _cut_off_slow_peers(self, now_s: float) -> None:
        for connection in list(self._connections):
            overdue = connection.overdue(now_s)
            if overdue:
                self.said.warning("slow peer", f"cut off a peer that {overdue}", peer=connection.name)
                self.machine.count("overdue_peers")
                connection.abort()

    def _cut_off_memory_hogs(self) -> None:
        """Unfinished requests and unread answers of all peers together are bounded: those who hold most are cut off."""
        held = {connection: connection.held_bytes for connection in self._connections}
        total = sum(held.values())
        if total <= self._held_bytes_max:
            return
        for connection in sorted(held, key=held.__getitem__, reverse=True):
            self.said.warning("memory hog", f"cut off a peer that holds {held[connection]} bytes", peer=connection.name)
            self.machine.count("memory_hogs")
            connection.abort()
            total -= held[connection]
            if total <= self._held_bytes_max // 2:
                return

    def _tell_of_late_commits(self) -> None:
        """Each was answered "aborted" and is counted; the log says how many from time to time."""
        count = self.machine.report().counters["aborts_low_watermark"]
        if count > self._late_commits:
            self.said.count("late", count - self._late_commits, "commits began at or below the low watermark: aborted")
            self._late_commits = count

    def _exit_if_idle(self, now_s: float) -> None:
        """T14: never with a connection open or a lease live.

        The machine's own work (it reads the catalog every few seconds) does not keep the process alive; it only has to
        have ended.
        """
        report = self.machine.report()
        if self._connections or report.leases or report.pending:
            self._idle_since_s = now_s
        elif now_s - self._idle_since_s >= self._idle_exit_s and self.machine.is_quiet:
            log.info("idle", extra={"idle_s": self._idle_exit_s, "epoch": report.epoch})
            self.stop()

    def _perform(self, instructions: list[Instruction]) -> None:
        answers: defaultdict[Connection, list[tuple[int, Answer]]] | None = None
        for instruction in instructions:
            match instruction:
                case SendEncoded(replies):
                    cast("Connection | SocketLoop", replies.peer).release(cast("SocketReplies", replies))
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
            self._write_held()

    def _start(self, call: StoreCall) -> None:
        try:
            if isinstance(call.operation, Flush):
                self._submit(rows_of(call.operation), partial(self._flush_ended, call, self._clock()))
            else:
                self._flushes.on_thread(partial(perform, self._stores, call.operation), partial(self._ended, call))
        except Exception as error:
            self.fail(error)

    def _flush_ended(self, call: StoreCall, began_s: float, result: Flushed | OmidError) -> None:
        self.flush_seconds.add(self._clock() - began_s)
        self.feed([StoreFailed(call.token, result) if isinstance(result, OmidError) else StoreDone(call.token, result)])

    def _ended(self, call: StoreCall, result: object) -> None:
        if isinstance(result, Exception):
            self.feed([StoreFailed(call.token, as_failure(result, type(call.operation).__name__))])
        else:
            self.feed([StoreDone(call.token, result)])
