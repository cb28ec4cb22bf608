"""Commits of small and of large transactions in a folder, small enough to visit whole: folder.md's "Branches".

Every transaction writes the same row of one table. A small one begins, then decides and writes in one write
transaction. A large one, a job, begins, writes the row under the versions of one or two branches, each in a write
transaction of its own, and commits its branches in another. A claimer names the row at its commit, and writes nothing.
A job may die. With savepoints, a taker takes back the row that it wrote, and a keeper another cell: their commits claim
what they kept.

    small, claimer    begin ─ commit
    job, keeper       begin ─ branch ─ (branch) ─ commit
    taker             begin ─ branch ─ back ─ commit

What must hold: of two transactions that overlap, at most one commits, unless both only claimed, or one is a taker. And
nobody aborts without another one that overlaps and committed the row; so no taker aborts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from search import Step

RULES = (
    "writer_looks",
    "small_dooms",
    "pair_noted",
    "pair_of_both",
    "commit_dooms_pairs",
    "looks_as_it_writes",
    "branch_resolved",
    "newest_of_branches",
    "others_of_table",
    "claims_noted",
    "writer_sees_claims",
    "claimer_dooms",
    "all_at_once",
    "keeper_dooms",
    "claims_replace_pairs",
    "claims_replace_doom",
)

SMALL, JOB, PAIR, CLAIMER = "small", "job", "job of two branches", "claimer"
TAKER, KEEPER = "taker", "keeper"
OPEN = 0


@dataclass(frozen=True)
class Branch:
    job: int
    commit: int = OPEN
    doomed: bool = False
    version: int = 0
    """Under which it wrote the row; 0: it has only looked, without `looks_as_it_writes`."""
    is_gone: bool = False
    """What it wrote was taken back, and deleted."""
    pairs: frozenset[int] = frozenset()
    """Branches that wrote the row, too."""

    @property
    def has_record(self) -> bool:
        return bool(self.version) and not self.is_gone


@dataclass(frozen=True)
class Writer:
    kind: str
    step: str = "new"
    snapshot: int = 0
    branches: tuple[int, ...] = ()
    commit: int = 0
    committed_branches: int = 0
    """Without `all_at_once`: how many of them have their commit."""


@dataclass(frozen=True)
class World:
    writers: tuple[Writer, ...]
    branches: tuple[Branch, ...] = ()
    records: tuple[int, ...] = ()
    """Commits of small transactions to the row."""
    clock: int = 2
    newest: int = 0
    """Of the table's commits."""
    claim: int = 0


@dataclass(frozen=True)
class Model:
    """Who takes part, and rules; a rule set to False is a mutant."""

    kinds: tuple[str, ...]
    dies: bool = False
    writer_looks: bool = True
    small_dooms: bool = True
    pair_noted: bool = True
    pair_of_both: bool = True
    commit_dooms_pairs: bool = True
    looks_as_it_writes: bool = True
    branch_resolved: bool = True
    newest_of_branches: bool = True
    others_of_table: bool = True
    claims_noted: bool = True
    writer_sees_claims: bool = True
    claimer_dooms: bool = True
    all_at_once: bool = True
    keeper_dooms: bool = True
    claims_replace_pairs: bool = True
    claims_replace_doom: bool = True

    def first(self) -> World:
        return World(tuple(Writer(kind) for kind in self.kinds))

    def steps(self, world: World) -> Iterator[Step[World]]:
        for me, writer in enumerate(world.writers):
            if writer.step == "new":
                begun = replace(writer, step="begun", snapshot=world.clock + 1)
                yield f"{me} begins at {world.clock + 1}", _writer(world, me, begun)
            elif writer.step == "begun" and writer.kind in (SMALL, CLAIMER):
                yield self._small(world, me, writer)
            elif writer.step == "begun":
                yield from self._job_steps(world, me, writer)
            elif writer.step == "committing":
                yield self._job_commit(world, me, writer)
            if self.dies and writer.kind in (JOB, PAIR) and writer.step == "begun":
                yield f"{me} dies", _writer(world, me, replace(writer, step="dead"))

    # Small transactions

    def _small(self, world: World, me: int, writer: Writer) -> Step[World]:
        if self._newest_conflict(world, writer.snapshot, resolved=self.branch_resolved) or (
            world.claim >= writer.snapshot and writer.kind == SMALL
        ):
            return f"{me} aborts", _writer(world, me, replace(writer, step="aborted"))
        commit = world.clock + 2
        committed = _writer(world, me, replace(writer, step="committed", commit=commit))
        committed = replace(committed, clock=commit)
        if writer.kind == SMALL:
            committed = replace(committed, newest=commit, records=(*world.records, commit))
        elif self.claims_noted:
            committed = replace(committed, claim=commit)
        dooms = self.small_dooms if writer.kind == SMALL else self.claimer_dooms
        return f"{me} commits at {commit}", _doomed(committed, range(len(world.branches))) if dooms else committed

    def _newest_conflict(self, world: World, snapshot: int, *, resolved: bool = True, job: int = -1) -> bool:
        commits = list(world.records)
        if resolved:
            commits += [branch.commit for branch in world.branches if branch.job != job and branch.has_record]
        return max(commits, default=0) >= snapshot

    # Jobs

    def _job_steps(self, world: World, me: int, writer: Writer) -> Iterator[Step[World]]:
        waiting = [number for number in writer.branches if not world.branches[number].version]
        if waiting:
            yield f"{me} writes what it compared", self._put(world, waiting[0])
        elif len(writer.branches) < (2 if writer.kind == PAIR else 1):
            looked = self._looked(world, me, writer)
            label = f"{me} writes branch {len(world.branches)}"
            yield label, self._put(looked, len(world.branches)) if self.looks_as_it_writes else looked
        elif writer.kind == TAKER and not world.branches[writer.branches[0]].is_gone:
            gone = replace(world.branches[writer.branches[0]], is_gone=True)
            yield f"{me} takes it back", _branch(world, writer.branches[0], gone)
        else:
            yield self._job_commit(world, me, writer)

    def _looked(self, world: World, me: int, writer: Writer) -> World:
        """Compare with the newest records, unless nothing in the table can conflict."""
        number, branch = len(world.branches), Branch(me)
        others = [other for other, each in enumerate(world.branches) if each.commit == OPEN and each.job != me]
        may_conflict = (
            world.newest >= writer.snapshot or world.claim or (others and self.others_of_table)
        ) and self.writer_looks
        pairs: dict[int, Branch] = {}
        if may_conflict:
            conflict = self._newest_conflict(world, writer.snapshot, job=me)
            conflict = conflict or (self.writer_sees_claims and world.claim >= writer.snapshot)
            met_now = frozenset(other for other in others if world.branches[other].has_record)
            noted = met_now if self.pair_noted else frozenset[int]()
            branch = replace(branch, doomed=conflict, pairs=noted)
            if self.pair_of_both:
                met = {other: world.branches[other] for other in noted}
                pairs = {other: replace(each, pairs=each.pairs | {number}) for other, each in met.items()}
        kept = tuple(pairs.get(other, each) for other, each in enumerate(world.branches))
        named = _writer(world, me, replace(writer, branches=(*writer.branches, number)))
        return replace(named, branches=(*kept, branch))

    @staticmethod
    def _put(world: World, number: int) -> World:
        version = world.clock + 2
        written = _branch(world, number, replace(world.branches[number], version=version))
        return replace(written, clock=version)

    def _job_commit(self, world: World, me: int, writer: Writer) -> Step[World]:
        mine = [world.branches[number] for number in writer.branches]
        claims_all = writer.kind in (TAKER, KEEPER)
        refused = any(branch.doomed for branch in mine)
        if claims_all and self.claims_replace_doom:
            conflict = self._newest_conflict(world, writer.snapshot, job=me) or world.claim >= writer.snapshot
            refused = writer.kind == KEEPER and conflict
        if writer.step == "begun" and refused:
            return f"{me} aborts", _writer(world, me, replace(writer, step="aborted"))
        if not self.all_at_once and writer.step == "begun" and len(mine) > 1:
            commit = world.clock + 2
            first = _branch(world, writer.branches[0], replace(mine[0], commit=commit))
            partly = _writer(first, me, replace(writer, step="committing", committed_branches=1))
            return f"{me} commits a branch at {commit}", replace(partly, clock=commit, newest=commit)
        if writer.step == "committing" and mine[1].doomed:
            return f"{me} aborts", _writer(world, me, replace(writer, step="aborted half"))
        commit = world.clock + 2
        committed = _writer(world, me, replace(writer, step="committed", commit=commit))
        for number in writer.branches:
            committed = _branch(committed, number, replace(world.branches[number], commit=commit))
        newest = commit if self.newest_of_branches else world.newest
        committed = replace(committed, clock=commit, newest=newest)
        if writer.kind == KEEPER and self.keeper_dooms:
            committed = _doomed(committed, range(len(world.branches)))
        if self.commit_dooms_pairs and not (claims_all and self.claims_replace_pairs):
            committed = _doomed(committed, {other for branch in mine for other in branch.pairs})
        return f"{me} commits at {commit}", committed

    def violation_of(self, world: World) -> str | None:
        """What must never be."""
        if any(writer.step == "aborted half" for writer in world.writers):
            return "half a job is committed"
        for me, writer in enumerate(world.writers):
            others = [other for number, other in enumerate(world.writers) if number != me and other.kind != TAKER]
            if writer.kind == TAKER:
                if writer.step == "aborted":
                    return "a transaction aborted for what it had taken back"
            elif writer.step == "committed":
                for other in others:
                    overlap = other.commit >= writer.snapshot and writer.commit >= other.snapshot
                    if overlap and other.commit and not writer.kind == other.kind == CLAIMER:
                        return "two transactions that overlap committed"
            elif writer.step == "aborted" and not any(other.commit >= writer.snapshot for other in others):
                return "a transaction aborted, and nobody committed meanwhile"
        return None


def _doomed(world: World, numbers: Iterable[int]) -> World:
    """Doom the open branches among these."""
    for number in numbers:
        branch = world.branches[number]
        if branch.commit == OPEN and branch.version:
            world = _branch(world, number, replace(branch, doomed=True))
    return world


def _writer(world: World, me: int, writer: Writer) -> World:
    return replace(world, writers=(*world.writers[:me], writer, *world.writers[me + 1 :]))


def _branch(world: World, number: int, branch: Branch) -> World:
    return replace(world, branches=(*world.branches[:number], branch, *world.branches[number + 1 :]))
