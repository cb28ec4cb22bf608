"""The life of one table's name, small enough to visit whole: protocol.md, Catalog.

Two processes drop the table and make it anew, whichever it needs; each may die between any two steps, and goes on as
another process. A client keeps the table's rules and transacts by them; two others add a column each; one reads the
table. A TSO draws fences and may be replaced. A *life* is what a creator made: its level and its generation, so rules
of another life are rules of another level.

    drop     PRESENT ─► DROPPING ─► fence ─► note ─► name what has the name ─► look ─► that one goes ─► the entry goes
    create   nothing, CREATING ─► CREATING ─► generation drawn ─► physical table ─► PRESENT
    client   begin (told the newest fence) ─► rules, kept or read ─► write ─► commit, unless a fence is later
    reader   begin ─► entry ─► rows ─► entry again ─► the rows are right, or it is refused
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from search import Step

T = TypeVar("T")

CREATING, PRESENT, DROPPING = "CREATING", "PRESENT", "DROPPING"


@dataclass(frozen=True)
class Entry:
    state: str
    life: int
    nonce: int
    columns: frozenset[str] = frozenset()
    generation: int = 0


@dataclass(frozen=True)
class Physical:
    """A table in the store. `rows`: (start, life of the rules it was written by)."""

    number: int
    rows: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True)
class Maker:
    """A process that drops or makes the table. `at`: the step that is next; `entry`: under which it works."""

    at: str = "idle"
    entry: Entry | None = None
    named: int = 0
    fence: int = 0
    generation: int = 0


@dataclass(frozen=True)
class Reader:
    start: int
    sees: frozenset[tuple[int, int]]
    """What was committed when it began, in the table that there was then: what it must read."""
    committed: frozenset[tuple[int, int]]
    """What was committed then in any life: what it takes for visible."""
    opened: Entry | None = None
    found: frozenset[tuple[int, int]] | None = None


@dataclass(frozen=True)
class Transaction:
    start: int
    told: int
    """What the TSO said with it: the newest fence, or its epoch."""
    life: int = 0
    wrote: bool = False


@dataclass(frozen=True)
class World:
    entry: Entry | None = Entry(PRESENT, 1, 1)
    physical: Physical | None = Physical(1)
    makers: tuple[Maker, ...] = (Maker(), Maker())
    kept: tuple[int, int] | None = None
    """The client's: (life, a start that was handed out before it was read)."""
    transaction: Transaction | None = None
    reader: Reader | None = None
    noted: int = 0
    """The newest fence noted for the name."""
    reads: int = 0
    alterers: tuple[Entry | None, ...] = (None, None)
    """What each that adds a column has read."""
    clock: int = 1
    fence: int = 0
    epoch: int = 0
    nonces: int = 1
    lives: int = 1
    numbers: int = 1
    drops: int = 0
    crashes: int = 0
    begins: int = 0
    committed: frozenset[tuple[int, int]] = frozenset()
    """(start, life of its rules), acknowledged."""
    added: frozenset[tuple[int, str]] = frozenset()
    """(life, column), acknowledged."""
    dropped: frozenset[int] = frozenset()
    violation: str | None = None


RULES = (
    "compare_and_set",
    "creating_is_a_state",
    "dropping_is_a_state",
    "drop_fences",
    "drop_looks_again",
    "drop_takes_what_it_named",
    "create_unnames",
    "kept_rules_go_by_fences",
    "kept_rules_go_by_epochs",
    "alter_compares",
    "reads_look_again",
    "reads_look_at_the_state",
    "drop_notes_its_fence",
    "reads_look_for_a_former_life",
    "generation_is_drawn_while_creating",
)


@dataclass(frozen=True)
class Model:
    """Bounds, who takes part, and rules; a rule set to False is a mutant."""

    drops_max: int = 2
    crashes_max: int = 1
    begins_max: int = 2
    client: bool = True
    altering: bool = False
    failover: bool = False
    reads_max: int = 0
    compare_and_set: bool = True
    creating_is_a_state: bool = True
    dropping_is_a_state: bool = True
    drop_fences: bool = True
    drop_looks_again: bool = True
    drop_takes_what_it_named: bool = True
    create_unnames: bool = True
    kept_rules_go_by_fences: bool = True
    kept_rules_go_by_epochs: bool = True
    alter_compares: bool = True
    reads_look_again: bool = True
    reads_look_at_the_state: bool = True
    drop_notes_its_fence: bool = True
    reads_look_for_a_former_life: bool = True
    generation_is_drawn_while_creating: bool = True

    def steps(self, world: World) -> Iterator[Step[World]]:
        if world.violation is not None:
            return
        for number, maker in enumerate(world.makers):
            name = f"maker {number + 1}"
            for label, after in self._maker_steps(world, maker):
                yield f"{name} {label}", replace(after[0], makers=_put(world.makers, number, after[1]))
            if maker.at != "idle" and world.crashes < self.crashes_max:
                dead = replace(world, crashes=world.crashes + 1, makers=_put(world.makers, number, Maker()))
                yield f"{name} dies", dead
        if self.client:
            yield from self._client_steps(world)
        if self.altering:
            yield from self._alterer_steps(world)
        if self.reads_max:
            yield from self._reader_steps(world)
        if self.failover and not world.epoch:
            yield "another TSO takes over", replace(world, epoch=world.clock, fence=0, clock=world.clock + 1)

    # ── making and dropping ──────────────────────────────────────────────────────────────────────────────────────

    def _maker_steps(self, world: World, maker: Maker) -> Iterator[tuple[str, tuple[World, Maker]]]:
        entry = maker.entry
        match maker.at:
            case "idle":
                yield from self._begun(world)
            case "fence":
                if self.drop_fences:
                    fenced = replace(maker, at="note" if self.reads_max else "name", fence=world.clock)
                    yield "fences", (_drawn(world, fence=world.clock), fenced)
                else:
                    yield "does not fence", (world, replace(maker, at="name"))
            case "note":
                noted = max(world.noted, maker.fence) if self.drop_notes_its_fence else world.noted
                yield "notes its fence", (replace(world, noted=noted), replace(maker, at="name", fence=0))
            case "name":
                if world.physical is None:
                    yield "finds no rows", (world, replace(maker, at="remove"))
                else:
                    yield "names the rows", (world, replace(maker, at="look", named=world.physical.number))
            case "look":
                stands = world.entry == entry or not self.drop_looks_again
                yield "looks", (world, replace(maker, at="take") if stands else Maker())
            case "take":
                if world.physical is not None and self._takes(world.physical, maker):
                    yield "takes the rows", (replace(world, physical=None), replace(maker, at="remove"))
                else:
                    yield "takes nothing", (world, replace(maker, at="name"))
            case "remove":
                goes = world.entry == entry or not self.compare_and_set
                yield "is done", (replace(world, entry=None) if goes else world, Maker())
            case "draw":
                yield "draws its generation", (_drawn(world), replace(maker, at="make", generation=world.clock))
            case "put":
                if world.entry == entry:
                    yield "begins to make it", self._creating(world, maker)
            case "make":
                made, found = world, world.physical
                if found is None:
                    made = replace(world, physical=Physical(world.numbers + 1), numbers=world.numbers + 1)
                elif self.create_unnames:
                    renamed = replace(found, number=world.numbers + 1)
                    made = replace(world, physical=renamed, numbers=world.numbers + 1)
                yield "makes rows", (made, replace(maker, at="present"))
            case "present":
                assert entry is not None
                expected = entry if self.creating_is_a_state else None
                present = Entry(PRESENT, entry.life, world.nonces + 1, generation=maker.generation)
                if world.entry == expected or not self.compare_and_set:
                    world = replace(world, entry=present, nonces=world.nonces + 1)
                yield "presents it", (world, Maker())

    def _takes(self, physical: Physical, maker: Maker) -> bool:
        return physical.number == maker.named or not self.drop_takes_what_it_named

    def _begun(self, world: World) -> Iterator[tuple[str, tuple[World, Maker]]]:
        entry = world.entry
        if entry is not None and entry.state == PRESENT:
            if world.drops == self.drops_max:
                return
            decided = replace(world, drops=world.drops + 1, dropped=world.dropped | {entry.life})
            if self.dropping_is_a_state:
                after = Entry(DROPPING, entry.life, world.nonces + 1, generation=entry.generation)
                decided = replace(decided, entry=after, nonces=world.nonces + 1)
                yield "decides a drop", (decided, Maker("fence", after))
            else:
                yield "removes the entry", (replace(decided, entry=None), Maker("fence", None))
        elif entry is not None and entry.state == DROPPING:
            yield "goes on with a drop", (world, Maker("fence", entry))
        elif world.lives < 2 + self.drops_max:
            yield "begins to make it", self._creating(world, Maker())

    def _creating(self, world: World, maker: Maker) -> tuple[World, Maker]:
        draws = bool(self.reads_max) and (self.generation_is_drawn_while_creating or not maker.generation)
        creating = Entry(CREATING, world.lives + 1, world.nonces + 1)
        begun = replace(world, lives=world.lives + 1, nonces=world.nonces + 1)
        if self.creating_is_a_state:
            begun = replace(begun, entry=creating)
        return begun, replace(maker, at="draw" if draws else "make", entry=creating)

    # ── the client ───────────────────────────────────────────────────────────────────────────────────────────────

    def _client_steps(self, world: World) -> Iterator[Step[World]]:
        tx = world.transaction
        if tx is None:
            if world.begins < self.begins_max:
                told = world.fence if self.kept_rules_go_by_fences else 0
                told = max(told, world.epoch if self.kept_rules_go_by_epochs else 0)
                begun = replace(world, transaction=Transaction(world.clock, told), begins=world.begins + 1)
                yield "client begins", _drawn(begun)
            return
        if not tx.life:
            if world.kept is not None and (world.kept[1] >= tx.start or world.kept[1] >= tx.told):
                yield "client goes by what it kept", replace(world, transaction=replace(tx, life=world.kept[0]))
            if world.entry is not None and world.entry.state == PRESENT:
                life = world.entry.life
                yield "client reads", replace(world, kept=(life, tx.start), transaction=replace(tx, life=life))
        elif not tx.wrote and world.physical is not None:
            rows = world.physical.rows | {(tx.start, tx.life)}
            written = replace(world.physical, rows=rows)
            yield "client writes", replace(world, physical=written, transaction=replace(tx, wrote=True))
        elif tx.wrote:
            ended = replace(world, transaction=None)
            if world.fence > tx.start or tx.start <= world.epoch:
                yield "client aborts", ended
            else:
                yield "client commits", self._after_commit(ended, tx)
        if not tx.wrote:
            yield "client gives up", replace(world, transaction=None)

    def _after_commit(self, world: World, tx: Transaction) -> World:
        if world.entry is not None and world.entry.state == PRESENT and world.entry.life != tx.life:
            return replace(world, violation="a commit by the rules of another life")
        return replace(world, committed=world.committed | {(tx.start, tx.life)})

    # ── the reader ───────────────────────────────────────────────────────────────────────────────────────────────

    def _reader_steps(self, world: World) -> Iterator[Step[World]]:
        reader, entry = world.reader, world.entry
        if reader is None:
            if world.reads < self.reads_max:
                life = entry.life if entry is not None and entry.state == PRESENT else 0
                sees = frozenset(row for row in world.committed if row[1] == life)
                begun = replace(world, reader=Reader(world.clock, sees, world.committed), reads=world.reads + 1)
                yield "reader begins", _drawn(begun)
            return
        yield "reader gives up", replace(world, reader=None)
        if reader.opened is None:
            if entry is not None and entry.state == PRESENT:
                yield "reader opens it", replace(world, reader=replace(reader, opened=entry))
        elif reader.found is None:
            if world.physical is not None:
                found = world.physical.rows & reader.committed
                yield "reader fetches", replace(world, reader=replace(reader, found=found))
        elif self._counts(world, reader) and reader.found != reader.sees:
            yield "reader returns", replace(world, violation="a read that is not of its snapshot")

    def _counts(self, world: World, reader: Reader) -> bool:
        entry, opened = world.entry, reader.opened
        assert opened is not None
        if self.reads_look_again:
            if entry is None or entry.life != opened.life:
                return False
            if self.reads_look_at_the_state and entry.state != PRESENT:
                return False
        is_younger = opened.generation > reader.start
        return not (self.reads_look_for_a_former_life and is_younger and world.noted > reader.start)

    # ── columns ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _alterer_steps(self, world: World) -> Iterator[Step[World]]:
        for number, (saw, column) in enumerate(zip(world.alterers, "ab", strict=True)):
            present = world.entry is not None and world.entry.state == PRESENT
            if saw is None:
                if present and world.entry is not None and column not in world.entry.columns:
                    yield f"{column} reads", replace(world, alterers=_put(world.alterers, number, world.entry))
                continue
            after = replace(world, alterers=_put(world.alterers, number, None))
            if world.entry == saw or not self.alter_compares:
                altered = Entry(PRESENT, saw.life, world.nonces + 1, saw.columns | {column})
                added = world.added | {(saw.life, column)}
                after = replace(after, entry=altered, nonces=world.nonces + 1, added=added)
            yield f"{column} alters", after


def violation_of(world: World) -> str | None:
    """What must never be."""
    entry, physical = world.entry, world.physical
    if world.violation is not None or entry is None or entry.state != PRESENT:
        return world.violation
    if entry.life in world.dropped:
        return "a dropped table is there again"
    if physical is None:
        return "a table without its physical table"
    if any(row in world.committed and row[1] != entry.life for row in physical.rows):
        return "a table shows rows of a former one"
    if any(row[1] == entry.life and row not in physical.rows for row in world.committed):
        return "an acknowledged row is gone"
    if any(life == entry.life and column not in entry.columns for life, column in world.added):
        return "an added column is gone"
    return None


def _drawn(world: World, *, fence: int | None = None) -> World:
    """A timestamp was handed out."""
    return replace(world, clock=world.clock + 1, fence=world.fence if fence is None else fence)


def _put(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    return (*items[:index], item, *items[index + 1 :])
