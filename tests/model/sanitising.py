"""Marks, registration, drop and sanitising of one table, exhaustively: protocol.md's "Marks of unregistered tables".

Actors: Java clients (begin, write, commit; each dies before its shadow cells), an administrator who makes the HBase
table (makes it again after a drop, or drops it in HBase), a registration, a drop, the removal of a mark whose table is
gone, a compactor, a sanitiser, the TSO and the one that
takes over from it. Between any two steps anything else may happen, and the mark's removal may arrive at any time.

What must hold: a committed transaction whose cells lie in the table and are not healed is above H. And where a drop has
done its work, no mark of a table that is not there is left to stop the sanitiser.

A rule is one `self.keeps("name")`; a mutant is the same model without one rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

RULES = {
    "w_first": "the sanitiser reads W before the marks",
    "marks_first": "the sanitiser lists marks before tables",
    "refuses": "the sanitiser refuses while a mark stands whose table is not listed",
    "mark_first": "the mark is durable before the commit is decided",
    "fence_forgets_registered": "a fence makes the TSO forget that the table was registered",
    "fence_forgets_mark": "a fence makes the TSO forget that the table was marked",
    "read_before_fence": "what was read before the fence is not believed after it",
    "mark_before_fence": "a mark made before the fence is not believed after it",
    "fence_waits": "a fence waits for a mark that is on its way",
    "refused_marks_nothing": "a commit that the fence refuses leaves no mark",
    "dropping_unregistered": "to the TSO a table that is being dropped is not registered",
    "dropping_holds": "to the sanitiser a table that is being dropped is there until its data are gone",
    "fence_after_data": "the mark's nonce is read behind a fence, too: who wrote before aborts, and marks nothing",
    "nonce_before_fence": "the mark's nonce is read before the last fence",
    "fence_before_look": "the last fence comes before the look whether somebody made the table again",
    "looks": "the mark stays where somebody made the table again",
    "by_nonce": "the mark goes only if it has the nonce that was read",
    "new_nonce": "each mark has a nonce of its own, and replaces the one that stands",
}

IDLE, BEGUN, WROTE, LOOKED, MARKING, MARKED, COMMITTED, ABORTED = range(8)
FENCE, NONCE, DATA, LOOK, END = "fence", "nonce", "data", "look", "end"


class Transaction(NamedTuple):
    state: int = IDLE
    start: int = 0
    made: int = 0
    """Which making of the table its cells lie in."""
    healed: bool = False
    saw: bool = False
    """Its look at the catalog found the table."""
    forgotten: bool = False
    """A fence came since its look, or its mark, began."""
    late: bool = False
    """Its TSO died, its mark may still land."""


class Sanitiser(NamedTuple):
    looks: tuple[str, ...]
    watermark: int = 0
    mark: int = 0
    generation: int = 0
    record: tuple[int, int] = (0, 0)


class Compactor(NamedTuple):
    step: int = 0
    generation: int = 0
    watermark: int = 0


class World(NamedTuple):
    transactions: tuple[Transaction, ...]
    sanitiser: Sanitiser
    clock: int = 0
    watermark: int = 0
    """LWM and W at once, every commit decided below it is durable; it rises when somebody is about to read it."""
    horizon: int = 0
    made: int = 0
    exists: bool = False
    entry: int = 0
    """The generation that the catalog lists, 0: none."""
    registrations: int = 0
    clears: bool = False
    """A registration of an earlier version is about to take the mark away."""
    record: tuple[int, int] = (0, 0)
    mark: int = 0
    marks: int = 0
    registered: bool = False
    marked: bool = False
    fence: int = 0
    life: int = 1
    drop: tuple[str, ...] = ()
    dropped: bool = False
    nonce: int = 0
    clearing: bool = False
    """The removal of the mark with that nonce is on its way."""
    compactor: Compactor = Compactor()


Steps = Iterator[tuple[str, World]]


@dataclass(frozen=True)
class Model:
    """What may happen, and how often. Where there is a drop the table is registered at first."""

    transactions: int = 2
    registrations_max: int = 1
    made_max: int = 1
    drops: bool = False
    forgets: bool = False
    """The table is dropped in HBase's shell, and somebody takes its mark away."""
    known: bool = True
    """To the TSO, at first."""
    compacts: bool = False
    failover: bool = False
    clearing: bool = False
    """Registrations are of an earlier version: they take the mark away, whatever its nonce."""
    without: frozenset[str] = frozenset()

    def keeps(self, rule: str) -> bool:
        return rule not in self.without

    def first(self) -> World:
        watermark_first = ["watermark", "mark"] if self.keeps("w_first") else ["mark", "watermark"]
        looks = [*watermark_first, "table"] if self.keeps("marks_first") else ["watermark", "table", "mark"]
        if self.compacts:
            looks = [*looks, "record"]
        world = World((Transaction(),) * self.transactions, Sanitiser((*looks, "delete")))
        if self.drops:
            return world._replace(clock=1, made=1, exists=True, entry=1, registrations=1, registered=self.known)
        return world

    def violation_of(self, world: World) -> str | None:
        for each in world.transactions:
            is_there = each.state == COMMITTED and world.exists and each.made == world.made
            if is_there and not each.healed and each.start <= world.horizon:
                return f"the commit of {each.start} is below H {world.horizon} and nobody finds it"
        if self.drops and world.mark and not world.exists and not world.entry and self._is_over(world):
            return "a mark of a table that is gone stops the sanitiser"
        return None

    def _is_over(self, world: World) -> bool:
        if world.life > 1 or not world.dropped or world.drop or world.clearing:
            return False
        return all(each.state in (IDLE, COMMITTED, ABORTED) for each in world.transactions)

    def steps(self, world: World) -> Steps:
        for index, each in enumerate(world.transactions):
            for label, changed, transaction in self._transaction(world, each):
                others = list(changed.transactions)
                others[index] = transaction
                yield f"T{index} {label}", changed._replace(transactions=tuple(others))
            if each.state == IDLE:
                break  # they are alike
        yield from self._administrator(world)
        yield from self._registration(world)
        yield from self._drop(world)
        yield from self._compactor(world)
        yield from self._sanitiser(world)
        if self.failover and world.life == 1:
            yield "fail-over", self._fail_over(world)

    # ── a Java client, and what the TSO does with its commit ─────────────────────────────────────────────────────

    def _transaction(self, world: World, each: Transaction) -> Iterator[tuple[str, World, Transaction]]:
        match each.state:
            case _ if each.late:
                yield "late mark", self._with_mark(world), each._replace(late=False)
            case _ if each.state == IDLE and world.exists:
                start = world.clock + 1
                yield "begins", world._replace(clock=start), Transaction(BEGUN, start)
            case _ if each.state == BEGUN:
                if world.exists:
                    yield "writes", world, each._replace(state=WROTE, made=world.made)
                else:
                    yield "finds no table", world, each._replace(state=ABORTED)
            case _ if each.state == WROTE:
                if world.registered or world.marked:
                    yield self._decide(world, each)
                else:
                    looked = each._replace(state=LOOKED, saw=self._is_registered(world), forgotten=False)
                    yield "makes the TSO read the catalog", world, looked
            case _ if each.state == LOOKED:
                yield self._looked(world, each)
            case _ if each.state == MARKING:
                yield "marks", self._with_mark(world), each._replace(state=MARKED)
            case _ if each.state == MARKED:
                believed = not each.forgotten or not self.keeps("mark_before_fence")
                yield self._decide(world._replace(marked=world.marked or believed), each)

    def _looked(self, world: World, each: Transaction) -> tuple[str, World, Transaction]:
        if each.saw and (not each.forgotten or not self.keeps("read_before_fence")):
            return self._decide(world._replace(registered=True), each)
        if world.fence > each.start and self.keeps("refused_marks_nothing"):
            return "is refused", world, each._replace(state=ABORTED)
        if not self.keeps("mark_first"):
            return self._decide(world, each)
        return "is unregistered", world, each._replace(state=MARKING, forgotten=False)

    def _decide(self, world: World, each: Transaction) -> tuple[str, World, Transaction]:
        if each.start <= world.watermark or each.start < world.fence:
            return "aborts", world, each._replace(state=ABORTED)
        return "commits", world._replace(clock=world.clock + 1), each._replace(state=COMMITTED)

    def _with_mark(self, world: World) -> World:
        if world.mark and not self.keeps("new_nonce"):
            return world
        return world._replace(mark=world.marks + 1, marks=world.marks + 1)

    def _fail_over(self, world: World) -> World:
        """The new TSO's epoch is above every start, and it believes nothing."""
        transactions = tuple(
            each._replace(state=ABORTED, late=each.state == MARKING)
            if each.state in (BEGUN, WROTE, LOOKED, MARKING, MARKED)
            else each
            for each in world.transactions
        )
        return world._replace(
            transactions=transactions, life=2, registered=False, marked=False, clock=world.clock + 1,
            watermark=world.clock + 1,
        )  # fmt: skip

    # ── the catalog ────────────────────────────────────────────────────────────────────────────────────────────

    def _administrator(self, world: World) -> Steps:
        if not world.exists and world.made < self.made_max:
            yield "table made", world._replace(exists=True, made=world.made + 1)
        if self.forgets and world.exists and world.made < self.made_max:
            yield "table dropped in HBase", world._replace(exists=False)

    def _registration(self, world: World) -> Steps:
        if world.clears:
            yield "registration takes the mark away", world._replace(clears=False, mark=0)
        elif world.exists and not world.entry and world.registrations < self.registrations_max:
            yield (
                "registered",
                world._replace(
                    entry=world.clock + 1, clock=world.clock + 1, registrations=world.registrations + 1,
                    clears=self.clearing,
                ),
            )  # fmt: skip

    def _is_registered(self, world: World) -> bool:
        return world.entry > 0 and not (world.drop and self.keeps("dropping_unregistered"))

    def _drop(self, world: World) -> Steps:
        if world.clearing:
            taken = world.mark == world.nonce or not self.keeps("by_nonce")
            yield "drop: mark goes", world._replace(clearing=False, mark=0 if taken else world.mark)
        if self.drops and not world.dropped and world.entry:
            yield "drop: begins", world._replace(dropped=True, drop=(FENCE, DATA, *self._forgetting(), END))
        if self.forgets and not world.dropped:
            yield "forget: begins", world._replace(dropped=True, drop=(*self._forgetting(), END))
        if not world.drop:
            return
        rest = world._replace(drop=world.drop[1:])
        match world.drop[0]:
            case "fence":
                if not self.keeps("fence_waits") or all(each.state not in (MARKING, MARKED) for each in world[0]):
                    yield "drop: fence", self._fenced(rest)
            case "data":
                yield "drop: data go", rest._replace(exists=False)
            case "nonce":
                yield "drop: nonce read", rest._replace(nonce=world.mark)
            case "look":
                yield "drop: looks", rest._replace(clearing=not world.exists or not self.keeps("looks"))
            case _:
                yield "drop: entry goes", rest._replace(entry=0, record=(0, 0))

    def _forgetting(self) -> tuple[str, ...]:
        if not self.keeps("fence_after_data"):
            return NONCE, FENCE, LOOK
        if not self.keeps("nonce_before_fence"):
            return FENCE, NONCE, LOOK
        if not self.keeps("fence_before_look"):
            return FENCE, NONCE, LOOK, FENCE
        return FENCE, NONCE, FENCE, LOOK

    def _fenced(self, world: World) -> World:
        return world._replace(
            transactions=tuple(
                each._replace(forgotten=True) if each.state in (LOOKED, MARKING, MARKED) else each
                for each in world.transactions
            ),
            clock=world.clock + 1,
            fence=world.clock + 1,
            registered=world.registered and not self.keeps("fence_forgets_registered"),
            marked=world.marked and not self.keeps("fence_forgets_mark"),
        )

    # ── cleaning ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _compactor(self, world: World) -> Steps:
        step, generation, watermark = world.compactor
        if self.compacts and step == 0 and world.entry:
            yield (
                "compactor reads W",
                world._replace(compactor=Compactor(1, world.entry, world.clock), watermark=world.clock),
            )
        elif step == 1:
            healed = tuple(
                each._replace(healed=True)
                if each.state == COMMITTED and each.made == world.made and each.start <= watermark
                else each
                for each in world.transactions
            )
            yield "compactor heals", world._replace(transactions=healed, compactor=Compactor(2, generation, watermark))
        elif step == 2:
            yield "compactor records", world._replace(compactor=Compactor(3), record=(generation, watermark))

    def _sanitiser(self, world: World) -> Steps:
        looks = world.sanitiser.looks
        if not looks:
            return
        rest = world.sanitiser._replace(looks=looks[1:])
        match looks[0]:
            case "watermark":
                world = world._replace(watermark=world.clock)
                rest = rest._replace(watermark=world.clock)
            case "mark":
                rest = rest._replace(mark=world.mark)
            case "table":
                is_there = not world.drop or self.keeps("dropping_holds")
                rest = rest._replace(generation=world.entry if is_there else 0)
            case "record":
                rest = rest._replace(record=world.record)
            case "delete" if rest.mark and not rest.generation and self.keeps("refuses"):
                yield "sanitiser refuses", world._replace(sanitiser=Sanitiser(()))
                return
            case "delete":
                yield "sanitiser: H", world._replace(sanitiser=Sanitiser(()), horizon=self._horizon(world.sanitiser))
                return
        yield f"sanitiser: {looks[0]}", world._replace(sanitiser=rest)

    def _horizon(self, sanitiser: Sanitiser) -> int:
        if not sanitiser.generation:
            return sanitiser.watermark
        generation, cleaned = sanitiser.record
        return min(sanitiser.watermark, cleaned) if generation == sanitiser.generation else 0
