"""Whatever a row class declares is stored and comes back, or is refused by name when the class is given as a codec."""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Annotated, Any, ClassVar, Final, NamedTuple, NewType, NotRequired, Required, TypedDict

import pytest

import pyomid
from pyomid.client.database import Database
from pyomid.errors import Misuse, MisuseType

pytestmark = pytest.mark.fast


@dataclass
class Computed:
    id: int
    price: int
    count: int
    total: int = field(init=False)

    def __post_init__(self) -> None:
        self.total = self.price * self.count


@dataclass(frozen=True, slots=True)
class Frozen:
    id: int
    doubled: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "doubled", 2 * self.id)


@dataclass
class Changed:
    id: int
    cents: int

    def __post_init__(self) -> None:
        self.cents *= 100


@dataclass
class WithClassVar:
    kind: ClassVar[str] = "with"
    id: int
    name: str | None = None


@dataclass(kw_only=True)
class ByName:
    name: str
    id: int


@dataclass
class PartlyByName:
    id: int
    _: KW_ONLY
    name: str = "x"


@dataclass
class Base:
    id: int


@dataclass
class Inherited(Base):
    tags: Annotated[str, "string"] | None = field(default=None, compare=False)


@dataclass
class WithInitVarDefault:
    id: int
    scale: InitVar[int] = 3
    scaled: int = field(init=False, default=0)

    def __post_init__(self, scale: int) -> None:
        self.scaled = self.id * scale


UserId = NewType("UserId", int)


@dataclass
class WithNames:
    id: UserId
    fixed: Final[int] = 4  # type: ignore[misc]


class Tuple(NamedTuple):
    id: int
    name: str | None = None


class Partial(TypedDict, total=False):
    id: Required[int]
    name: str


class WithNotRequired(Partial):
    note: NotRequired[str | None]


ROWS: list[tuple[type, Any]] = [
    (Computed, Computed(1, 3, 4)),
    (Frozen, Frozen(1)),
    (Changed, Changed(1, 5)),
    (WithClassVar, WithClassVar(1, "a")),
    (ByName, ByName(id=1, name="a")),
    (PartlyByName, PartlyByName(1, name="a")),
    (Inherited, Inherited(1, "a")),
    (WithInitVarDefault, WithInitVarDefault(1, scale=7)),
    (WithNames, WithNames(UserId(1))),
    (Tuple, Tuple(1, "a")),
    (Tuple, Tuple(1)),
    (Partial, Partial(id=1)),
    (WithNotRequired, WithNotRequired(id=1, name="a", note=None)),
]


@pytest.mark.parametrize(("kind", "row"), ROWS, ids=lambda each: getattr(each, "__name__", ""))
def test_what_is_put_is_what_comes_back(memory_db: Database, kind: Any, row: Any) -> None:
    memory_db.create_table("rows", ["f"])
    memory_db.table_schema("rows", kind, row_key="id")
    with memory_db.begin() as tx:
        tx.table("rows", codec=kind).put(row)
    with memory_db.begin() as tx:
        assert tx.table("rows", codec=kind).get(1) == row
        assert list(tx.table("rows", codec=kind).scan()) == [row]


def test_a_computed_field_is_read_by_everybody(memory_db: Database) -> None:
    memory_db.create_table("rows", ["f"])
    memory_db.table_schema("rows", Computed, row_key="id")
    with memory_db.begin() as tx:
        tx.table("rows", codec=Computed).put(Computed(1, 3, 4))
    with memory_db.begin() as tx:
        assert tx.table("rows", codec=dict).get(1) == {"id": 1, "price": 3, "count": 4, "total": 12}


@dataclass
class NeedsInitVar:
    id: int
    scale: InitVar[int]


@dataclass(init=False)
class OwnInit:
    id: int

    def __init__(self, number: int) -> None:
        self.id = number


REFUSED: list[tuple[type, str]] = [(NeedsInitVar, "scale"), (OwnInit, "'id'")]


@pytest.mark.parametrize(("kind", "named"), REFUSED, ids=lambda each: getattr(each, "__name__", ""))
def test_a_class_that_no_row_can_be_made_of_is_refused_as_a_codec(memory_db: Database, kind: Any, named: str) -> None:
    memory_db.create_table("rows", ["f"])
    memory_db.table_schema("rows", {"id": int}, row_key="id")
    with memory_db.begin() as tx, pytest.raises(MisuseType, match=named):
        tx.table("rows", codec=kind)


def test_a_field_whose_column_is_missing_is_named_though_init_does_not_take_it(memory_db: Database) -> None:
    memory_db.create_table("rows", ["f"])
    memory_db.table_schema("rows", {"id": int, "price": int, "count": int}, row_key="id")
    with memory_db.begin() as tx, pytest.raises(Misuse, match="'total'"):
        tx.table("rows", codec=Computed)


def test_an_annotation_that_does_not_resolve_is_named(memory_db: Database) -> None:
    kind = dataclass(type("Lost", (), {"__annotations__": {"id": int, "other": "Nowhere"}, "other": None}))
    memory_db.create_table("rows", ["f"])
    with pytest.raises(MisuseType, match=r"Lost.*Nowhere"):
        memory_db.table_schema("rows", kind, row_key="id")


@dataclass
class Newer:
    id: int
    count: int = 7
    tags: str | None = "none yet"
    name: str = field(default_factory=lambda: "nobody")


def test_a_default_serves_a_row_that_is_older_than_its_column(memory_db: Database) -> None:
    memory_db.create_table("rows", ["f"])
    memory_db.table_schema("rows", {"id": int}, row_key="id")
    with memory_db.begin() as tx:
        tx.table("rows", codec=dict).put({"id": 1})
    memory_db.alter_columns("rows", add={"count": int, "tags": str, "name": str})
    with memory_db.begin() as tx:
        assert tx.table("rows", codec=Newer).get(1) == Newer(1, 7, None, "nobody")
        tx.table("rows", codec=Newer).put(Newer(2, 8, None, "b"))
    with memory_db.begin() as tx:
        assert tx.table("rows", codec=Newer).get(2) == Newer(2, 8, None, "b")


def test_an_attribute_that_was_never_set_is_named(memory_db: Database) -> None:
    @dataclass
    class Unset:
        id: int
        later: int = field(init=False)

    memory_db.create_table("rows", ["f"])
    memory_db.table_schema("rows", {"id": int, "later": int}, row_key="id")
    with memory_db.begin() as tx, pytest.raises(MisuseType, match="later"):
        tx.table("rows", codec=Unset).put(Unset(1))


@pytest.mark.parametrize("give", [lambda: [" a"], lambda: (" a desc",), lambda: '[" a"]'])
def test_a_key_column_is_named_exactly(memory_db: Database, give: Callable[[], Any]) -> None:
    memory_db.create_table("rows", ["f"])
    with pytest.raises(Misuse, match="' a'"):
        memory_db.table_schema("rows", {"a": int}, row_key=give())
    memory_db.table_schema("rows", {" a": int, "b": int}, row_key=give())


def test_an_empty_name_among_key_columns_is_refused(memory_db: Database) -> None:
    memory_db.create_table("rows", ["f"])
    with pytest.raises(Misuse, match="not a column name"):
        memory_db.table_schema("rows", {"a": int}, row_key=["a", ""])


def test_a_codec_of_no_kind_is_refused(memory_db: Database) -> None:
    memory_db.create_table("rows", ["f"])
    memory_db.table_schema("rows", {"id": int}, row_key="id")
    for codec in (int, typing.NamedTuple, object()):
        with memory_db.begin() as tx, pytest.raises(pyomid.errors.MisuseType, match="codec"):
            tx.table("rows", codec=codec)
