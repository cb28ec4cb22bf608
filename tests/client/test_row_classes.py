"""Whatever a row class declares is stored and comes back, or is refused by name when the class is given as a codec."""

from __future__ import annotations

import enum
import typing
from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, InitVar, dataclass, field, make_dataclass
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Generic,
    NamedTuple,
    NewType,
    NotRequired,
    Protocol,
    Required,
    TypedDict,
    TypeVar,
)

import attrs
import pydantic
import pytest
import typing_extensions

import pyomid
import pyomid.aio
from pyomid.database.database import Database
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


@dataclass
class OwnInit:
    """`@dataclass` keeps an `__init__` that the class has."""

    id: int
    cents: int

    def __init__(self, id: int, cents: int) -> None:
        self.id = id
        self.cents = cents * 100


@dataclass
class OwnSetattr:
    id: int
    name: str

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, f"{value}!" if name == "name" else value)


@dataclass
class OwnNew:
    id: int
    name: str = field(init=False)

    def __new__(cls, *args: Any, **kwargs: Any) -> OwnNew:
        made = super().__new__(cls)
        made.name = "made"
        return made


@dataclass(slots=True, kw_only=True)
class SlottedBase:
    id: int
    made: int = field(init=False, default=1)


@dataclass(slots=True, order=True, unsafe_hash=True)
class Slotted(SlottedBase):
    __hidden: str = field(default="h", repr=False, hash=False, metadata={"any": "thing"})
    _private: float = field(default_factory=lambda: 1.5, compare=True)


@dataclass
class SameUpToCase:
    id: int
    a: int
    A: int


@dataclass
class FieldNamedAsItsType:
    id: int
    str: str = "s"


T = TypeVar("T")


@dataclass
class Box(Generic[T]):
    id: int
    value: T = None  # type: ignore[assignment]


class TupleWithNew(NamedTuple("TupleWithNew", [("id", int), ("name", str)])):
    __slots__ = ()

    def __new__(cls, id: int, name: str) -> TupleWithNew:
        return super().__new__(cls, id, f"{name}!")


class TupleWithProperty(NamedTuple("TupleWithProperty", [("id", int), ("name", str)])):
    @property
    def name(self) -> str:  # type: ignore[override]
        return "from a property"


class OfExtensions(typing_extensions.TypedDict):
    id: typing_extensions.ReadOnly[int]
    name: NotRequired[Annotated[str, "string"]]


Functional = TypedDict("Functional", {"id": int, "a name": "NotRequired[str]", "class": Required[str]})


@pydantic.dataclasses.dataclass
class OfPydantic:
    id: int
    name: str = "a"


class Colour(enum.StrEnum):
    RED = "red"


@dataclass
class WithEnum:
    id: int
    colour: Annotated[Colour, "string"] = Colour.RED


ROWS: list[tuple[type, Any]] = [
    (OwnInit, OwnInit(1, 5)),
    (OwnSetattr, OwnSetattr(1, "a")),
    (OwnNew, OwnNew(1)),
    (Slotted, Slotted(id=1)),
    (SameUpToCase, SameUpToCase(1, 2, 3)),
    (FieldNamedAsItsType, FieldNamedAsItsType(1)),
    (TupleWithNew, TupleWithNew(1, "a")),
    (TupleWithProperty, TupleWithProperty(1, "a")),
    (OfExtensions, OfExtensions(id=1)),
    (OfExtensions, OfExtensions(id=1, name="a")),
    (Functional, {"id": 1, "class": "c"}),
    (OfPydantic, OfPydantic(1, "b")),
    (WithEnum, WithEnum(1)),
    (WithNotRequired, {"id": 1, "note": "b"}),
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
    memory_db.set_schema("rows", kind, row_key="id")
    with memory_db.begin() as tx:
        tx.table("rows", codec=kind).put(row)
    with memory_db.begin() as tx:
        assert tx.table("rows", codec=kind).get(1) == row
        assert list(tx.table("rows", codec=kind).scan()) == [row]


def test_a_computed_field_is_read_by_everybody(memory_db: Database) -> None:
    memory_db.create_table("rows", ["f"])
    memory_db.set_schema("rows", Computed, row_key="id")
    with memory_db.begin() as tx:
        tx.table("rows", codec=Computed).put(Computed(1, 3, 4))
    with memory_db.begin() as tx:
        assert tx.table("rows", codec=dict).get(1) == {"id": 1, "price": 3, "count": 4, "total": 12}


@dataclass
class NeedsInitVar:
    id: int
    scale: InitVar[int]


@dataclass(init=False)
class OtherInit:
    id: int

    def __init__(self, number: int) -> None:
        self.id = number


@dataclass(init=False)
class NoInit:
    id: int


@dataclass
class PositionalInit:
    id: int

    def __init__(self, id: int, /) -> None:
        self.id = id


class Undecorated(Base):
    extra: int = 0


class Mixin:
    extra: int
    kind: ClassVar[int]


@dataclass
class WithMixin(Mixin):
    id: int


class TupleWithMore(Tuple):
    extra: int = 0


@dataclass
class WithProperty:
    id: int
    extra: int

    @property  # type: ignore[no-redef]
    def extra(self) -> int:
        return self._extra * 2

    @extra.setter
    def extra(self, value: int) -> None:
        self._extra = value


class Doubling:
    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_{name}"

    def __get__(self, row: object, owner: type) -> int:
        return 7 if row is None else 2 * int(getattr(row, self._name))

    def __set__(self, row: object, value: int) -> None:
        setattr(row, self._name, value)


@dataclass
class WithDescriptor:
    id: int
    extra: int = Doubling()  # type: ignore[assignment]


@dataclass
class Abstract(ABC):
    id: int

    @abstractmethod
    def extra(self) -> None: ...


@dataclass
class OfProtocol(Protocol):
    id: int


class OfEnum(Base, enum.Enum):
    RED = 1


@dataclass
class UnresolvedDefault:
    id: int
    extra: Nowhere = 5  # type: ignore[name-defined]  # noqa: F821


class UnresolvedTuple(NamedTuple):
    id: int
    extra: Nowhere = 5  # type: ignore[name-defined]  # noqa: F821


class UnresolvedDict(TypedDict, total=False):
    id: Required[int]
    extra: Nowhere  # type: ignore[name-defined]  # noqa: F821


REFUSED: list[tuple[Any, str]] = [
    (NeedsInitVar, "'scale'"),
    (OtherInit, "'id'"),
    (NoInit, "'id'"),
    (PositionalInit, "'id'"),
    (Undecorated, "'extra'.*Undecorated"),
    (WithMixin, "'extra'.*Mixin"),
    (TupleWithMore, "'extra'.*TupleWithMore"),
    (WithProperty, "'extra'.*property"),
    (WithDescriptor, "'extra'.*Doubling"),
    (Abstract, "Abstract.*abstract"),
    (OfProtocol, "OfProtocol.*abstract"),
    (OfEnum, "OfEnum"),
    (UnresolvedDefault, "'extra'.*Nowhere"),
    (UnresolvedTuple, "'extra'.*Nowhere"),
    (UnresolvedDict, "'extra'.*Nowhere"),
    (attrs.make_class("OfAttrs", ["id", "extra"]), "OfAttrs"),
    (pydantic.create_model("OfPydantic", id=int, extra=int), "OfPydantic"),
    (Box[int], "Box"),
]


@pytest.mark.parametrize(("kind", "named"), REFUSED, ids=lambda each: getattr(each, "__name__", ""))
def test_a_class_that_no_row_can_be_made_of_is_refused_as_a_codec(memory_db: Database, kind: Any, named: str) -> None:
    memory_db.create_table("rows", ["f"])
    memory_db.set_schema("rows", {"id": int, "extra": int}, row_key="id")
    with memory_db.begin() as tx, pytest.raises(MisuseType, match=named):
        tx.table("rows", codec=kind)


@pytest.mark.parametrize("kind", [Undecorated, WithMixin, TupleWithMore], ids=lambda each: each.__name__)
def test_an_annotation_that_makes_no_field_makes_no_column(memory_db: Database, kind: Any) -> None:
    memory_db.create_table("rows", ["f"])
    with pytest.raises(MisuseType, match="'extra'"):
        memory_db.set_schema("rows", kind, row_key="id")


async def test_asyncio_refuses_the_same(memory_url: str) -> None:
    async with await pyomid.aio.connect(memory_url) as db:
        await db.create_table("rows", ["f"])
        await db.set_schema("rows", {"id": int, "extra": int}, row_key="id")
        async with db.begin() as tx:
            with pytest.raises(MisuseType, match="'extra'"):
                await tx.table("rows", codec=WithMixin)
            rows = await tx.table("rows", codec=Base)
            await rows.put(Base(1))
            assert await rows.get(1) == Base(1)


def test_a_field_whose_column_is_missing_is_named_though_init_does_not_take_it(memory_db: Database) -> None:
    memory_db.create_table("rows", ["f"])
    memory_db.set_schema("rows", {"id": int, "price": int, "count": int}, row_key="id")
    with memory_db.begin() as tx, pytest.raises(Misuse, match="'total'"):
        tx.table("rows", codec=Computed)


def test_an_annotation_that_does_not_resolve_is_named(memory_db: Database) -> None:
    kind = dataclass(type("Lost", (), {"__annotations__": {"id": int, "other": "Nowhere"}, "other": None}))
    memory_db.create_table("rows", ["f"])
    with pytest.raises(MisuseType, match=r"Lost.*Nowhere"):
        memory_db.set_schema("rows", kind, row_key="id")


@dataclass
class Unresolved:
    id: int
    extra: Nowhere  # type: ignore[name-defined]  # noqa: F821
    more: Nowhere | None = None  # type: ignore[name-defined]  # noqa: F821
    fixed: Nowhere = field(default=None)  # type: ignore[name-defined]  # noqa: F821


class UnresolvedRequired(TypedDict):
    id: int
    extra: Nowhere  # type: ignore[name-defined]  # noqa: F821


OfText = make_dataclass("OfText", [("id", int), "name"])
OfNames = namedtuple("OfNames", ["id", "name"], defaults=["x"])


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        (Unresolved, Unresolved(1, 2)),
        (UnresolvedRequired, {"id": 1, "extra": 2}),
        (OfText, OfText(1, "a")),
        (OfNames, OfNames(1, "a")),
        (OfNames, OfNames(1, None)),
        (Box, Box(1, "a")),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_type_that_is_not_known_is_not_needed(memory_db: Database, kind: Any, row: Any) -> None:
    """Values have the types of the columns; a field's own type decides about its default only."""
    memory_db.create_table("rows", ["f"])
    columns = {"id": int, "extra": int, "more": int, "fixed": int, "name": str, "value": str}
    memory_db.set_schema("rows", columns, row_key="id")
    with memory_db.begin() as tx:
        rows = tx.table("rows", codec=kind)
        rows.put(row)
        assert rows.get(1) == row


Name = NewType("Name", str)
MaybeName = typing_extensions.TypeAliasType("MaybeName", str | None)
Flag = typing.Literal["a", "b"]


@dataclass
class Newer:
    id: int
    count: int = 7
    tags: str | None = "none yet"
    name: Name = field(default_factory=lambda: Name("nobody"))
    alias: MaybeName = "alias"
    flag: Flag = "a"
    anything: object = "any"
    computed: int = field(init=False)

    def __post_init__(self) -> None:
        self.computed = 2 * self.id


class NewerTuple(NamedTuple):
    id: int
    count: int = 7
    tags: str | None = "none yet"


class NewerDict(TypedDict):
    id: int
    count: NotRequired[int]
    tags: str | None


@pytest.fixture
def newer_db(memory_db: Database) -> Iterator[Database]:
    """A row 1, and columns that are newer."""
    memory_db.create_table("rows", ["f"])
    memory_db.set_schema("rows", {"id": int}, row_key="id")
    with memory_db.begin() as tx:
        tx.table("rows", codec=dict).put({"id": 1})
    texts = dict.fromkeys(["tags", "name", "alias", "flag", "anything"], str)
    memory_db.alter_columns("rows", add={"count": int, **texts, "computed": int})
    return memory_db


DEFAULTS: list[tuple[Any, Any]] = [
    (Newer, Newer(1, 7, None, Name("nobody"), None, "a", None)),
    (NewerTuple, NewerTuple(1, 7, None)),
    (NewerDict, {"id": 1, "tags": None}),
]


@pytest.mark.parametrize(("kind", "row"), DEFAULTS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_default_serves_a_row_that_is_older_than_its_column(newer_db: Database, kind: Any, row: Any) -> None:
    with newer_db.begin() as tx:
        assert tx.table("rows", codec=kind).get(1) == row
        assert list(tx.table("rows", codec=kind).scan()) == [row]


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        (Newer, Newer(1, 8, None, Name("b"), None, "b", None)),
        (NewerTuple, NewerTuple(1, 8, None)),
        (NewerDict, {"id": 1, "count": 8, "tags": None}),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_none_stays_none(newer_db: Database, kind: Any, row: Any) -> None:
    with newer_db.begin() as tx:
        tx.table("rows", codec=kind).put(row)
    with newer_db.begin() as tx:
        assert tx.table("rows", codec=kind).get(1) == row


def _not_computed() -> Newer:
    row = Newer(1)
    row.computed = None  # type: ignore[assignment]
    return row


@pytest.mark.parametrize(
    ("kind", "row", "named"),
    [
        (Newer, Newer(1, None), "count"),  # type: ignore[arg-type]
        (Newer, _not_computed(), "computed"),
        (NewerTuple, NewerTuple(1, None), "count"),  # type: ignore[arg-type]
        (NewerDict, {"id": 1, "count": None, "tags": None}, "count"),
    ],
)
def test_none_is_refused_where_it_would_come_back_as_the_default(
    newer_db: Database, kind: Any, row: Any, named: str
) -> None:
    with newer_db.begin() as tx, pytest.raises(MisuseType, match=f"'{named}' is None"):
        tx.table("rows", codec=kind).put(row)


def test_a_typed_dict_has_the_keys_that_it_declares(newer_db: Database) -> None:
    with newer_db.begin() as tx:
        rows = tx.table("rows", codec=NewerDict)
        with pytest.raises(MisuseType, match="lacks the key 'tags'"):
            rows.put({"id": 1})  # type: ignore[typeddict-item]
        with pytest.raises(MisuseType, match="the key 'name'"):
            rows.put({"id": 1, "tags": None, "name": "a"})  # type: ignore[typeddict-unknown-key]


@dataclass
class Extended(Base):
    extra: int = 0


class RenamedTuple(Tuple):
    pass


@pytest.mark.parametrize(("kind", "row"), [(Base, Extended(1, 2)), (Tuple, RenamedTuple(1)), (Base, {"id": 1})])
def test_a_row_of_another_class_is_refused(memory_db: Database, kind: Any, row: Any) -> None:
    """Of a subclass, too: its own fields would be lost."""
    memory_db.create_table("rows", ["f"])
    memory_db.set_schema("rows", {"id": int, "name": str, "extra": int}, row_key="id")
    with memory_db.begin() as tx, pytest.raises(MisuseType, match=f"is {type(row).__name__}, not {kind.__name__}"):
        tx.table("rows", codec=kind).put(row)


@dataclass
class Once:
    id: int
    cents: int

    def __post_init__(self) -> None:
        if self.cents > 100:
            raise ValueError("too many cents")
        self.cents *= 100


def test_what_a_class_would_refuse_when_it_is_read_is_refused_when_it_is_put(memory_db: Database) -> None:
    memory_db.create_table("rows", ["f"])
    memory_db.set_schema("rows", Once, row_key="id")
    with memory_db.begin() as tx:
        rows = tx.table("rows", codec=Once)
        rows.put(Once(1, 1))
        assert rows.get(1) == Once(1, 1)
        with pytest.raises(MisuseType, match="too many cents"):
            rows.put(Once(2, 2))


def test_an_attribute_that_was_never_set_is_named(memory_db: Database) -> None:
    @dataclass
    class Unset:
        id: int
        later: int = field(init=False)

    memory_db.create_table("rows", ["f"])
    memory_db.set_schema("rows", {"id": int, "later": int}, row_key="id")
    with memory_db.begin() as tx, pytest.raises(MisuseType, match="later"):
        tx.table("rows", codec=Unset).put(Unset(1))


@pytest.mark.parametrize("give", [lambda: [" a"], lambda: (" a desc",), lambda: '[" a"]'])
def test_a_key_column_is_named_exactly(memory_db: Database, give: Callable[[], Any]) -> None:
    memory_db.create_table("rows", ["f"])
    with pytest.raises(Misuse, match="' a'"):
        memory_db.set_schema("rows", {"a": int}, row_key=give())
    memory_db.set_schema("rows", {" a": int, "b": int}, row_key=give())


def test_a_column_is_named_by_text(memory_db: Database) -> None:
    memory_db.create_table("rows", ["f"])
    with pytest.raises(MisuseType, match=r"a column name must be a string, not 1 \(int\)"):
        memory_db.set_schema("rows", {"id": int, 1: int}, row_key="id")  # type: ignore[dict-item]


SURROGATE = "a\ud800"

NAMING: list[Callable[[Database], object]] = [
    lambda db: db.set_schema("rows", {SURROGATE: int}, row_key=[SURROGATE]),
    lambda db: db.set_schema("rows", {"a": int, SURROGATE: int}, row_key="a"),
    lambda db: db.set_schema("rows", {"a": int, "b": int}, row_key="a", mapping={"b": f"f:{SURROGATE}"}),
    lambda db: db.alter_columns("named", add={SURROGATE: int}),
    lambda db: db.alter_columns("named", rename={"a": SURROGATE}),
    lambda db: db.create_table("other", [SURROGATE]),
]


@pytest.mark.parametrize("name", NAMING)
def test_a_name_that_is_not_utf8_is_refused(memory_db: Database, name: Callable[[Database], object]) -> None:
    for table in ("rows", "named"):
        memory_db.create_table(table, ["f"])
    memory_db.set_schema("named", {"a": int}, row_key="a")
    with pytest.raises(Misuse, match=r"ud800|xed"):
        name(memory_db)


def test_an_empty_name_among_key_columns_is_refused(memory_db: Database) -> None:
    memory_db.create_table("rows", ["f"])
    with pytest.raises(Misuse, match="not a column name"):
        memory_db.set_schema("rows", {"a": int}, row_key=["a", ""])


def test_a_codec_of_no_kind_is_refused(memory_db: Database) -> None:
    memory_db.create_table("rows", ["f"])
    memory_db.set_schema("rows", {"id": int}, row_key="id")
    for codec in (int, typing.NamedTuple, object()):
        with memory_db.begin() as tx, pytest.raises(pyomid.errors.MisuseType, match="codec"):
            tx.table("rows", codec=codec)
