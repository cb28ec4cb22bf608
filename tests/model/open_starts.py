"""Who holds LWM back, small enough to visit whole: protocol.md's "Open starts".

A client A begins, ends, tells which starts it holds open, loses its connection and makes another; it may fork, or work
under a lease. A second client B is a silent one (a Java peer), or A's forked child. A TSO hands starts out, hears what
is told, sees connections end (late, or with requests still queued), and is replaced. Whoever is stopped just takes no
step: everything else may happen before its next one. Time is a step, too: "age" makes every start so far an old one.

    A ── begin, tell ──► queue of the connection ──► TSO: a floor a connection ──► LWM
      ◄── start ──────── queue of the connection ◄──┘

What must hold: LWM passes a start that somebody holds open (or that is on its way to somebody who waits for it) only
by age or by a new epoch, and never below a lease; and nobody holds LWM back who has told that nothing is open.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from search import Step

T = TypeVar("T")

RULES = (
    "handed_out_is_open",
    "begun_is_open",
    "told_in_order",
    "told_of_all_connections",
    "floor_a_connection",
    "ended_connection_holds",
    "back_is_not_told",
    "younger_connection_told",
    "told_lasts_for_all",
    "silence_holds",
    "age_passes_all",
    "lease_before_end",
    "fork_has_own_name",
)

NEW, OPEN, GONE = "new", "open", "gone"

Message = tuple[str, int]
"""("begin", 0), ("tell", floor) or ("start", start)."""


@dataclass(frozen=True)
class Connection:
    """As the TSO knows it. `floor`: what its client may hold open through it is at or above; 0: nothing. `newest`: and
    at or below."""

    state: str = NEW
    name: str = ""
    """The client's, once it told."""
    floor: int = 0
    newest: int = 0
    up: tuple[Message, ...] = ()
    down: tuple[Message, ...] = ()


@dataclass(frozen=True)
class Client:
    connection: int = -1
    """The one it uses; -1: none."""
    open: frozenset[int] = frozenset()
    begun: int = -1
    """A begin is under way: whatever it brings is above this. -1: none is."""
    newest: int = 0
    composed: int = -1
    """Without `told_in_order`: what it is about to tell."""
    here: frozenset[int] = frozenset()
    """Of `open`, what came over the present connection."""
    tells: int = 0


@dataclass(frozen=True)
class World:
    clients: tuple[Client, Client] = (Client(0), Client(2))
    connections: tuple[Connection, ...] = (Connection(up=(("tell", 0),)), Connection(), Connection())
    """A's first, A's second, B's. A client tells first: the connection has its name before a begin."""
    ghosts: frozenset[tuple[str, int, int, int]] = frozenset()
    """(name, number, floor, newest) of connections that ended."""
    newest: int = 0
    low: int = 0
    old: int = 0
    """Every start up to this one is old."""
    epoch: int = 0
    leased: frozenset[int] = frozenset()
    working: frozenset[int] = frozenset()
    """What tasks read under a lease."""
    ages: int = 0


@dataclass(frozen=True)
class Model:
    """Bounds, who takes part, and rules; a rule set to False is a mutant."""

    starts_max: int = 3
    tells_max: int = 2
    ages_max: int = 0
    silent: bool = False
    forked: bool = False
    reconnects: bool = False
    leases: bool = False
    failover: bool = False
    handed_out_is_open: bool = True
    begun_is_open: bool = True
    told_in_order: bool = True
    told_of_all_connections: bool = True
    floor_a_connection: bool = True
    ended_connection_holds: bool = True
    back_is_not_told: bool = True
    younger_connection_told: bool = True
    told_lasts_for_all: bool = True
    silence_holds: bool = True
    age_passes_all: bool = True
    lease_before_end: bool = True
    fork_has_own_name: bool = True

    def steps(self, world: World) -> Iterator[Step[World]]:
        yield from self._client_steps(world, 0)
        if self.silent or self.forked:
            yield from self._client_steps(world, 1)
        for number, connection in enumerate(world.connections):
            yield from self._tso_steps(world, number, connection)
        if world.ages < self.ages_max and world.old < world.newest:
            yield "age", replace(world, old=world.newest, ages=world.ages + 1)
        if self.failover and not world.epoch and world.newest:
            fresh = tuple(replace(each, state=GONE, floor=0, up=(), down=()) for each in world.connections[:1])
            taken = replace(world, epoch=world.newest, low=max(world.low, self._under_leases(world, world.newest)))
            lost = replace(world.clients[0], connection=-1)
            yield (
                "another TSO takes over",
                replace(
                    taken,
                    connections=fresh + world.connections[1:],
                    ghosts=frozenset(),
                    clients=(lost, world.clients[1]),
                ),
            )
        low = self.low_of(world)
        if low > world.low:
            yield f"LWM {low}", replace(world, low=low)

    # ── clients ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _client_steps(self, world: World, who: int) -> Iterator[Step[World]]:
        client, name = world.clients[who], "AB"[who]
        tells = who == 0 or self.forked
        number = client.connection
        if number < 0:
            if self.reconnects or self.failover:
                yield from self._reconnects(world)
            return
        if client.begun < 0 and world.newest < self.starts_max:
            begun = _sent(world, number, ("begin", 0))
            yield f"{name} begins", _client(begun, who, replace(client, begun=client.newest))
        for start in client.open:
            ended = replace(client, open=client.open - {start}, here=client.here - {start})
            yield f"{name} ends {start}", _client(world, who, ended)
            if self.leases and who == 0 and start not in world.leased | world.working:
                yield from self._leases(world, client, start)
        if tells and client.tells < self.tells_max:
            yield from self._tells(world, who)
        down = world.connections[number].down
        if down:
            rest = _connection(world, number, replace(world.connections[number], down=down[1:]))
            start = down[0][1]
            received = replace(client, open=client.open | {start}, here=client.here | {start}, begun=-1, newest=start)
            yield f"{name} receives {start}", _client(rest, who, received if client.begun >= 0 else client)
        if self.reconnects and who == 0:
            lost = replace(client, connection=-1, here=frozenset())
            yield "A gives its connection up", _client(world, 0, lost)
        if self.silent and who == 1 and client.begun < 0:
            yield "B closes its connection", _client(world, 1, replace(client, connection=-1))

    def _tells(self, world: World, who: int) -> Iterator[Step[World]]:
        client, name = world.clients[who], "AB"[who]
        if self.told_in_order:
            told = replace(client, tells=client.tells + 1)
            floor = self.floor_of(client)
            yield f"{name} tells {floor}", _client(_sent(world, client.connection, ("tell", floor)), who, told)
        elif client.composed < 0:
            composed = replace(client, composed=self.floor_of(client))
            yield f"{name} will tell {composed.composed}", _client(world, who, composed)
        else:
            told = replace(client, composed=-1, tells=client.tells + 1)
            sent = _sent(world, client.connection, ("tell", client.composed))
            yield f"{name} tells {client.composed}", _client(sent, who, told)

    def floor_of(self, client: Client) -> int:
        """What the client may hold open is at or above; 0: nothing."""
        held = list(client.open if self.told_of_all_connections else client.here)
        if client.begun >= 0 and self.begun_is_open:
            held.append(client.begun + 1)
        return min(held, default=0)

    def _reconnects(self, world: World) -> Iterator[Step[World]]:
        """Over the next connection it tells first, and what waits for a start asks again."""
        client = world.clients[0]
        number = 1
        if world.connections[number] != Connection():
            return
        back = world
        if self.back_is_not_told:
            back = _sent(back, number, ("tell", self.floor_of(client)))
        else:
            back = _without_ghosts(back, "A", number)
        if client.begun >= 0:
            back = _sent(back, number, ("begin", 0))
        yield "A is back", _client(back, 0, replace(client, connection=number))

    def _leases(self, world: World, client: Client, start: int) -> Iterator[Step[World]]:
        """Tasks work under a lease; the client itself holds the start no more."""
        released = replace(client, open=client.open - {start}, here=client.here - {start})
        if self.lease_before_end:
            if start > world.low:
                leased = replace(world, leased=world.leased | {start}, working=world.working | {start})
                yield f"A leases {start}", _client(leased, 0, released)
        else:
            yield f"A will lease {start}", _client(replace(world, working=world.working | {start}), 0, released)

    # ── the TSO ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _tso_steps(self, world: World, number: int, connection: Connection) -> Iterator[Step[World]]:
        for start in world.working & world.leased if number == 0 else ():
            yield (
                f"the lease on {start} ends",
                replace(world, leased=world.leased - {start}, working=world.working - {start}),
            )
        if connection.state == GONE:
            return
        if connection.up:
            (kind, told), rest = connection.up[0], replace(connection, state=OPEN, up=connection.up[1:])
            if kind == "begin" and world.newest < self.starts_max:
                yield f"TSO hands out {world.newest + 1} over {number}", self._handed_out(world, number, rest)
            elif kind == "tell":
                yield f"TSO hears {told} over {number}", self._heard(world, number, rest, told)
        in_use = any(client.connection == number for client in world.clients)
        if not in_use and connection.state == OPEN:
            yield f"TSO sees the end of {number}", self._ended(world, number, connection)

    def _handed_out(self, world: World, number: int, connection: Connection) -> World:
        start = world.newest + 1
        down = (*connection.down, ("start", start))
        handed = replace(connection, newest=start, down=down)
        is_silent = self.silent and number == 2 and not self.silence_holds
        if not connection.floor and self.handed_out_is_open and not is_silent:
            handed = replace(handed, floor=start)
        return _connection(replace(world, newest=start), number, handed)

    def _heard(self, world: World, number: int, connection: Connection, floor: int) -> World:
        name = "B" if number == 2 and self.fork_has_own_name else "A"
        newest = world.newest if floor and self.told_lasts_for_all else connection.newest
        heard = _connection(world, number, replace(connection, name=name, floor=floor, newest=newest))
        if not self.floor_a_connection:
            same = tuple(replace(each, floor=floor) if each.name == name else each for each in heard.connections)
            heard = replace(heard, connections=same)
        return _without_ghosts(heard, name, number if self.younger_connection_told else len(world.connections))

    def _ended(self, world: World, number: int, connection: Connection) -> World:
        ended = _connection(world, number, Connection(GONE))
        others = world.connections[number + 1 :] if self.younger_connection_told else world.connections
        is_back = any(each.name == connection.name and each is not connection and each.state == OPEN for each in others)
        if not connection.floor or not self.ended_connection_holds or (connection.name and is_back):
            return ended
        return replace(ended, ghosts=ended.ghosts | {(connection.name, number, connection.floor, connection.newest)})

    def low_of(self, world: World) -> int:
        """Where LWM may rise to."""
        floors = [
            each.floor for each in world.connections if each.floor and each.state == OPEN and each.newest > world.old
        ]
        floors += [floor for _, _, floor, newest in world.ghosts if newest > world.old]
        by_open = min([world.newest, *(floor - 1 for floor in floors)])
        by_age = world.old if self.age_passes_all else 0
        return self._under_leases(world, max(by_open, by_age, world.low))

    @staticmethod
    def _under_leases(world: World, low: int) -> int:
        return max(world.low, min([low, *(start - 1 for start in world.leased)]))

    def violation_of(self, world: World) -> str | None:
        """What must never be."""
        lawful = max(world.old, world.epoch)
        for who, client in enumerate(world.clients):
            held = set(client.open)
            if client.begun >= 0 and client.connection >= 0:
                held |= {start for _, start in world.connections[client.connection].down}
            for start in held:
                if lawful < start <= world.low:
                    return f"LWM {world.low} passed {start}, which {'AB'[who]} holds"
        if any(start <= world.low for start in world.working):
            return f"LWM {world.low} passed a start under a lease"
        low = self.low_of(world)
        if low < self._under_leases(world, world.old):
            return "an old start holds LWM back"
        return self._held_by_nobody(world, low)

    def _held_by_nobody(self, world: World, low: int) -> str | None:
        client = world.clients[0]
        if self.silent or self.forked or client.open or client.begun >= 0 or world.leased or client.connection < 0:
            return None
        connection = world.connections[client.connection]
        has_told = connection.name and not connection.up and not connection.floor
        others = [each for each in world.connections if each is not connection and each.state == OPEN]
        if has_told and not others and low < world.newest:
            return "nothing is open, and LWM is held back"
        return None


def _client(world: World, who: int, client: Client) -> World:
    return replace(world, clients=_put(world.clients, who, client))


def _connection(world: World, number: int, connection: Connection) -> World:
    return replace(world, connections=_put(world.connections, number, connection))


def _without_ghosts(world: World, name: str, number: int) -> World:
    """A client that told over connection `number` holds what it got over those before."""
    return replace(world, ghosts=frozenset(each for each in world.ghosts if each[0] != name or each[1] >= number))


def _sent(world: World, number: int, message: Message) -> World:
    connection = world.connections[number]
    return _connection(world, number, replace(connection, up=(*connection.up, message)))


def _put(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    return (*items[:index], item, *items[index + 1 :])
