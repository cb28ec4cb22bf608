"""Both ends of T16 as they are, over connections that queue, break and are replaced: what the model of
`tests/model/open_starts.py` visits whole, the shipped code meets at random."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest

from pyomid.omid.oracle.open_starts import OpenStarts as Held
from pyomid.omid.wire.client_protocol import OpenStarts
from pyomid.omid.wire.messages import ReportOpenStarts
from pyomid.types import OpenStart

pytestmark = pytest.mark.fast

AGE_S = 50.0
MOVES = 400


@dataclass(eq=False)
class Connection:
    up: deque[Any] = field(default_factory=deque)
    down: deque[tuple[int, int]] = field(default_factory=deque)
    """(ticket, start)."""
    is_used: bool = True
    is_heard: bool = True


class Client:
    def __init__(self, world: World, name: bytes, *, tells: bool = True) -> None:
        self.world, self.tells = world, tells
        self.here = OpenStarts(client=name, slack_s=AGE_S, holder="", clock=lambda: world.now_s)
        self.open: dict[int, OpenStart] = {}
        self.waiting: dict[int, OpenStart] = {}
        self.connect()

    def connect(self) -> None:
        """It tells first; whoever waits for a start asks again."""
        self.connection = Connection()
        self.world.connections.append(self.connection)
        self.here.connected(AGE_S if self.tells else 0.0, 0)
        self.tell()
        self.connection.up.extend(self.waiting)

    def tell(self) -> None:
        if self.tells and not self.here.is_reported:
            self.connection.up.append(self.here.next_report())

    def move(self, choices: random.Random) -> None:
        match choices.randrange(6):
            case 0 if len(self.open) + len(self.waiting) < 3:
                held = self.here.expect()
                self.waiting[held._number] = held
                self.connection.up.append(held._number)
            case 1 if self.open:
                ended = choices.choice(sorted(self.open))
                held = self.open.pop(ended)
                if choices.random() < 0.5:  # else it is forgotten
                    held.end()
            case 2:
                self.tell()
            case 3 | 4 if self.connection.down:
                ticket, start_ts = self.connection.down.popleft()
                if ticket in self.waiting:
                    self.open[start_ts] = self.waiting.pop(ticket)
                    self.here.received(self.open[start_ts], start_ts)
            case 5 if choices.random() < 0.1:
                self.connection.is_used = False
                self.connect()


class World:
    def __init__(self, seed: int, *, silent: bool = True) -> None:
        self.choices = random.Random(seed)
        self.tso = Held()
        self.now_s = 0.0
        self.newest = self.low = 0
        self.ages: deque[tuple[float, int]] = deque()
        self.old = 0
        self.connections: list[Connection] = []
        self.clients = [Client(self, b"a"), Client(self, b"b")]
        if silent:
            self.clients.append(Client(self, b"java", tells=False))

    def play(self) -> None:
        for _ in range(MOVES):
            self.now_s += 0.1
            match self.choices.randrange(3):
                case 0:
                    self.choices.choice(self.clients).move(self.choices)
                case 1:
                    self.serve(self.choices.choice([each for each in self.connections if each.is_heard]))
                case 2:
                    self.rise()
            self.judge()

    def serve(self, connection: Connection) -> None:
        if not connection.is_used and self.choices.random() < 0.3:
            connection.is_heard = False
            self.tso.gone(connection)
        elif connection.up:
            request = connection.up.popleft()
            if isinstance(request, ReportOpenStarts):
                self.tso.report(connection, request, self.newest)
            else:
                self.tso.handed_out(connection, self.newest, self.newest + 50)
                self.newest += 50
                connection.down.append((request, self.newest))

    def rise(self) -> None:
        self.ages.append((self.now_s, self.newest))
        while self.ages and self.ages[0][0] <= self.now_s - AGE_S:
            self.old = self.ages.popleft()[1]
        held = self.tso.lowest(self.old)
        self.low = max(self.low, self.old, self.newest if held is None else min(self.newest, held.bound - 1))

    def judge(self) -> None:
        for client in self.clients:
            on_its_way = {start for ticket, start in client.connection.down if ticket in client.waiting}
            for start_ts in client.open.keys() | on_its_way:
                assert start_ts > self.low or start_ts <= self.old, f"LWM {self.low} passed {start_ts}, which is open"

    def quiet(self) -> None:
        """Everybody ends, and what is under way arrives."""
        for client in self.clients:
            for held in client.waiting.values():
                held.end()
            client.waiting, client.open = {}, {}
            client.tell()
        self.choices = random.Random(0)
        for connection in self.connections:
            while connection.is_heard and (connection.up or not connection.is_used):
                self.serve(connection)


@pytest.mark.parametrize("first_seed", range(0, 200, 50))
def test_t16_lwm_passes_nothing_that_is_open(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 50):
        World(seed).play()


def test_t16_nobody_holds_lwm_who_told_that_nothing_is_open() -> None:
    for seed in range(50):
        world = World(seed, silent=False)
        world.play()
        world.quiet()
        world.rise()
        assert world.low == world.newest
