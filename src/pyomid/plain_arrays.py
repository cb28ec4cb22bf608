"""What the light installation needs of numpy, in plain Python: the same names, the same results, element by element.

An `Array` has one dimension, or two (rows of `width` elements), over a memoryview. As in numpy a slice of elements or
rows and a single column are views; what is chosen by indices or by a mask is a copy. Elements are Python's numbers:
there is no overflow that wraps. Arithmetic gives 64-bit integers, comparison booleans.
"""

from __future__ import annotations

import mmap
import operator
import sys
from bisect import bisect_left, bisect_right
from builtins import any as any_of
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, compress
from itertools import repeat as repeated
from typing import Any, Final

if sys.byteorder != "little":
    raise ImportError("without numpy pyomid needs a little-endian machine")

_MAPPED_BYTES_MIN: Final = 1 << 20
"""From here on the system gives pages as they are touched."""


class DType:
    """A type of elements; called, it makes one of a number."""

    __slots__ = ("format", "itemsize", "name")

    def __init__(self, name: str, format: str, itemsize: int) -> None:
        self.name, self.format, self.itemsize = name, format, itemsize

    def __call__(self, value: Any = 0) -> Any:
        return bool(value) if self.format == "?" else int(value)


int64: Final = DType("int64", "q", 8)
int32: Final = DType("int32", "i", 4)
uint64: Final = DType("uint64", "Q", 8)
uint32: Final = DType("uint32", "I", 4)
uint8: Final = DType("uint8", "B", 1)
bool_: Final = DType("bool", "?", 1)
_NAMED: Final = {"<i8": int64, "<u8": uint64}


def _type(dtype: DType | str) -> DType:
    return _NAMED[dtype] if isinstance(dtype, str) else dtype


class Array:
    """`words`: the elements, row after row. `width`: how many a row has; 0 of an array with one dimension."""

    __slots__ = ("dtype", "width", "words")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, words: memoryview, dtype: DType, width: int = 0) -> None:
        self.words = words
        self.dtype = dtype
        self.width = width

    # ── shape ────────────────────────────────────────────────────────────────────────────────────────────────────

    def __len__(self) -> int:
        return len(self.words) // self.width if self.width else len(self.words)

    @property
    def size(self) -> int:
        return len(self.words)

    @property
    def nbytes(self) -> int:
        return len(self.words) * self.dtype.itemsize

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), self.width) if self.width else (len(self),)

    @property
    def data(self) -> memoryview:
        return self.words

    def reshape(self, rows: int, width: int = 0) -> Array:
        assert rows == -1
        return Array(self.words, self.dtype, width)

    def __iter__(self) -> Iterator[Any]:
        if not self.width:
            return iter(self.words)
        return (self[row] for row in range(len(self)))

    def tolist(self) -> list[Any]:
        if not self.width:
            return self.words.tolist()
        return [self.words[at : at + self.width].tolist() for at in range(0, len(self.words), self.width)]

    def tobytes(self) -> bytes:
        return self.words.tobytes()

    def copy(self) -> Array:
        return Array(_view(bytearray(self.words.tobytes()), self.dtype), self.dtype, self.width)

    def astype(self, dtype: DType | str, copy: bool = True) -> Array:
        wanted = _type(dtype)
        if wanted is self.dtype:
            return self.copy() if copy else self
        return _made(map(wanted, self.words), wanted, len(self.words), self.width)

    # ── elements ─────────────────────────────────────────────────────────────────────────────────────────────────

    def __getitem__(self, key: Any) -> Any:
        if not self.width:
            if isinstance(key, slice):
                return Array(self.words[key], self.dtype)
            chosen = _chosen(key, len(self))
            if chosen is None:
                return self.words[key]
            return _made([self.words[index] for index in chosen], self.dtype, len(chosen))
        if not isinstance(key, tuple):
            return self._rows(key)
        rows, column = key
        if isinstance(rows, slice) and isinstance(column, int):
            return Array(self._rows(rows).words[column :: self.width], self.dtype)
        if isinstance(rows, slice):
            columns = range(*column.indices(self.width))
            part = self._rows(rows).words
            values = [part[at + index] for at in range(0, len(part), self.width) for index in columns]
            return _made(values, self.dtype, len(values), len(columns))
        places = self._places(rows, column)
        return _made([self.words[at] for at in places], self.dtype, len(places))

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(key, tuple):
            rows, column = key
            if not isinstance(rows, slice):
                places: Sequence[int] = self._places(rows, column)
            elif isinstance(column, int):
                self[rows, column][:] = value
                return
            else:
                columns = range(*column.indices(self.width))
                places = [row * self.width + index for row in range(*rows.indices(len(self))) for index in columns]
        elif self.width and isinstance(key, slice):
            part = self._rows(key)
            Array(part.words, self.dtype)[:] = value.reshape(-1) if isinstance(value, Array) else value
            return
        elif self.width:
            first = range(len(self))[key] * self.width
            places, value = range(first, first + self.width), _array_of(value)
        elif isinstance(key, slice):
            part = self.words[key]
            if isinstance(value, Array) and value.dtype is self.dtype:
                part[:] = value.words
            else:
                _fill(part, range(len(part)), value)
            return
        else:
            chosen = _chosen(key, len(self))
            if chosen is None:
                self.words[key] = value
                return
            places = chosen
        _fill(self.words, places, value)

    def _rows(self, key: Any) -> Any:
        width = self.width
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step == 1:
                return Array(self.words[start * width : max(start, stop) * width], self.dtype, width)
            rows: Sequence[int] = range(start, stop, step)
        else:
            chosen = _chosen(key, len(self))
            if chosen is None:
                first = range(len(self))[key] * width
                return Array(self.words[first : first + width], self.dtype)
            rows = chosen
        parts = [self.words[row * width : (row + 1) * width].tobytes() for row in rows]
        return Array(_view(bytearray().join(parts), self.dtype), self.dtype, width)

    def _places(self, rows: Any, columns: Any) -> list[int]:
        chosen = _chosen(rows, len(self))
        if chosen is None:
            chosen = [range(len(self))[rows]]
        within = repeated(columns) if isinstance(columns, int) else columns
        return [row * self.width + column for row, column in zip(chosen, within, strict=False)]

    # ── all elements ─────────────────────────────────────────────────────────────────────────────────────────────

    def any(self, axis: int | None = None) -> Any:
        if axis is None:
            return any_of(self.words)
        return _made([any_of(row.words) for row in self], bool_, len(self))

    def all(self) -> bool:
        return all(self.words)

    def sum(self) -> int:
        return sum(self.words)

    def min(self) -> int:
        return min(self.words)

    def max(self, initial: int | None = None) -> int:
        return max(self.words) if initial is None else max(chain((initial,), self.words))

    def sort(self) -> None:
        _fill(self.words, range(len(self.words)), sorted(self.words))

    def _with(self, other: Any, work: Callable[[Any, Any], Any], dtype: DType) -> Array:
        others = other.words if isinstance(other, Array) else repeated(other)
        return _made(map(work, self.words, others), dtype, len(self.words), self.width)

    def _bits(self, other: Any, work: Callable[[Any, Any], Any]) -> Array:
        return self._with(other, work, bool_ if self.dtype is bool_ else int64)

    def __add__(self, other: Any) -> Array:
        return self._with(other, operator.add, int64)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Array:
        return self._with(other, operator.sub, int64)

    def __mul__(self, other: Any) -> Array:
        return self._with(other, operator.mul, int64)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Array:
        return self._with(other, operator.floordiv, int64)

    def __mod__(self, other: Any) -> Array:
        return self._with(other, operator.mod, int64)

    def __and__(self, other: Any) -> Array:
        return self._bits(other, operator.and_)

    def __or__(self, other: Any) -> Array:
        return self._bits(other, operator.or_)

    def __xor__(self, other: Any) -> Array:
        return self._bits(other, operator.xor)

    def __rshift__(self, other: Any) -> Array:
        return self._with(other, operator.rshift, int64)

    def __invert__(self) -> Array:
        if self.dtype is bool_:
            return _made(map(operator.not_, self.words), bool_, len(self.words), self.width)
        return _made(map(operator.invert, self.words), int64, len(self.words), self.width)

    def __eq__(self, other: object) -> Array:  # type: ignore[override]
        return self._with(other, operator.eq, bool_)

    def __ne__(self, other: object) -> Array:  # type: ignore[override]
        return self._with(other, operator.ne, bool_)

    def __lt__(self, other: Any) -> Array:
        return self._with(other, operator.lt, bool_)

    def __le__(self, other: Any) -> Array:
        return self._with(other, operator.le, bool_)

    def __gt__(self, other: Any) -> Array:
        return self._with(other, operator.gt, bool_)

    def __ge__(self, other: Any) -> Array:
        return self._with(other, operator.ge, bool_)


class NDArray:
    """For annotations."""

    def __class_getitem__(cls, dtype: Any) -> type[NDArray]:
        return cls


ndarray = Array


def _view(data: bytearray, dtype: DType) -> memoryview:
    return memoryview(data).cast(dtype.format)  # type: ignore[call-overload, no-any-return]


def _made(values: Iterable[Any], dtype: DType, count: int, width: int = 0) -> Array:
    made = empty(count, dtype)
    _fill(made.words, range(count), values)
    made.width = width
    return made


def _fill(words: memoryview, places: Sequence[int], values: Any) -> None:
    """One number for all places, or one for each."""
    if isinstance(values, Array):
        values = values.words
    elif isinstance(values, int):
        values = repeated(values)
    for place, value in zip(places, values, strict=False):
        words[place] = value


def _chosen(key: Any, count: int) -> Sequence[int] | None:
    """The indices that a mask or an array of indices names; None: it is a single number."""
    if isinstance(key, Array):
        return list(compress(range(count), key.words)) if key.dtype is bool_ else key.words.tolist()
    return key if isinstance(key, list) else None


def _array_of(values: Any) -> Array:
    if isinstance(values, Array):
        return values
    return array(values, bool_ if values and isinstance(values[0], bool) else int64)


# ── making ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def empty(shape: int | tuple[int, int], dtype: DType | str) -> Array:
    """Zeros."""
    wanted = _type(dtype)
    rows, width = (shape, 0) if isinstance(shape, int) else shape
    count = rows * (width or 1) * wanted.itemsize
    data = mmap.mmap(-1, count) if count >= _MAPPED_BYTES_MIN else bytearray(count)
    return Array(memoryview(data).cast(wanted.format), wanted, width)  # type: ignore[call-overload]


zeros = empty


def ones(count: int, dtype: DType) -> Array:
    return full(count, 1, dtype)


def full(count: int, value: int, dtype: DType) -> Array:
    return _made(repeated(value, count), dtype, count)


def full_like(like: Array, value: int) -> Array:
    return full(len(like), value, like.dtype)


def arange(start: int, stop: int | None = None, dtype: DType = int64) -> Array:
    numbers = range(start) if stop is None else range(start, stop)
    return _made(numbers, dtype, len(numbers))


def array(values: Any, dtype: DType = int64) -> Array:
    if isinstance(values, Array):
        return values.astype(dtype)
    listed = list(values)
    if listed and isinstance(listed[0], list | tuple):
        width = len(listed[0])
        return _made(chain.from_iterable(listed), dtype, width * len(listed), width)
    return _made(listed, dtype, len(listed))


def asarray(values: Any) -> Array:
    return _array_of(values)


def ascontiguousarray(values: Any, dtype: DType | None = None) -> Array:
    found = _array_of(values)
    found = found if dtype is None else found.astype(dtype, copy=False)
    return found if found.words.c_contiguous else found.copy()


def fromiter(values: Iterable[int], dtype: DType, count: int = -1) -> Array:
    listed = list(values)
    assert count in (-1, len(listed))
    return _made(listed, dtype, len(listed))


def frombuffer(data: Any, dtype: DType | str, count: int = -1, offset: int = 0) -> Array:
    wanted = _type(dtype)
    part = memoryview(data).cast("B")[offset:]
    if count >= 0:
        part = part[: count * wanted.itemsize]
    return Array(part.cast(wanted.format), wanted)  # type: ignore[call-overload]


# ── all elements of some arrays ──────────────────────────────────────────────────────────────────────────────────────


def concatenate(parts: Sequence[Any]) -> Array:
    arrays = [_array_of(part) for part in parts]
    joined = bytearray().join([each.words.tobytes() for each in arrays])
    return Array(_view(joined, arrays[0].dtype), arrays[0].dtype, arrays[0].width)


def stack(parts: Sequence[Array], axis: int) -> Array:
    assert axis == 1
    count = len(parts[0])
    return _made(chain.from_iterable(zip(*parts, strict=True)), parts[0].dtype, count * len(parts), len(parts))


def column_stack(parts: Sequence[Array]) -> Array:
    return stack(parts, axis=1)


def append(values: Array, value: int) -> Array:
    return concatenate([values, [value]])


def insert(values: Array, places: Array, news: Array) -> Array:
    """`places` say before which of the old elements each of `news` goes."""
    listed = values.tolist()
    for place, new in zip(reversed(places.tolist()), reversed(news.tolist()), strict=True):
        listed.insert(place, new)
    return array(listed, values.dtype)


def repeat(values: Array, counts: Array) -> Array:
    listed = list(chain.from_iterable(repeated(value, count) for value, count in zip(values, counts, strict=True)))
    return array(listed, values.dtype)


def cumsum(values: Array, dtype: DType = int64, out: Array | None = None) -> Array:
    sums = _made(accumulate(map(int, values.words)), dtype, len(values))
    if out is not None:
        out[:] = sums
    return sums


class add:
    """numpy's function of two arrays, as far as it is called."""

    @staticmethod
    def reduceat(values: Array, places: Array) -> Array:
        """The sum from each place to the next; the places ascend."""
        begins = places.tolist()
        return array([values[at:end].sum() for at, end in zip(begins, [*begins[1:], len(values)], strict=True)])


def diff(values: Array) -> Array:
    words = values.words
    return Array(words[1:], values.dtype) - Array(words[:-1], values.dtype)


def flatnonzero(values: Array) -> Array:
    return array(list(compress(range(len(values.words)), values.words)))


def nonzero(values: Array) -> tuple[Array, Array]:
    places = list(compress(range(len(values.words)), values.words))
    return array([at // values.width for at in places]), array([at % values.width for at in places])


def count_nonzero(values: Array) -> int:
    return sum(map(bool, values.words))


def any(values: Array) -> bool:
    return bool(values.any())


def searchsorted(values: Array, sought: Any, side: str = "left") -> Any:
    search = bisect_left if side == "left" else bisect_right
    if isinstance(sought, int):
        return search(values.words, sought)
    return array([search(values.words, each) for each in sought])


def argsort(values: Array, kind: str = "stable") -> Array:
    return array(sorted(range(len(values)), key=values.words.__getitem__))


def lexsort(keys: tuple[Array, Array]) -> Array:
    """By the last key, then by the first."""
    minor, major = keys[0].words, keys[1].words
    return array(sorted(range(len(major)), key=lambda index: (major[index], minor[index])))


def sort(values: Array) -> Array:
    return array(sorted(values.words), values.dtype)


def unique(
    values: Array,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
) -> Any:
    """Of rows with `axis` 0."""
    if axis is not None:
        distinct = sorted(set(map(tuple, values.tolist())))
        return _made(chain.from_iterable(distinct), values.dtype, len(distinct) * values.width, values.width)
    listed = values.tolist()
    found = sorted(set(listed))
    each = array(found, values.dtype)
    if return_index:
        first = {value: index for index, value in reversed(list(enumerate(listed)))}
        firsts = array([first[value] for value in found])
        if not return_counts:
            return each, firsts
        counts = Counter(listed)
        return each, firsts, array([counts[value] for value in found])
    if return_inverse:
        number = {value: index for index, value in enumerate(found)}
        return each, array([number[value] for value in listed])
    return each


def isin(values: Array, among: Iterable[int]) -> Array:
    return _made(map(set(among).__contains__, values.words), bool_, len(values))


def union1d(left: Array, right: Array) -> Array:
    return array(sorted({*left, *right}), left.dtype)


def setdiff1d(left: Array, right: Array, assume_unique: bool = False) -> Array:
    gone = set(right)
    kept = [value for value in left if value not in gone]
    return array(kept if assume_unique else sorted(set(kept)), left.dtype)


def where(mask: Array, yes: Any, no: Any) -> Array:
    one, other = (each if isinstance(each, Array) else repeated(each) for each in (yes, no))
    return _made((a if is_so else b for is_so, a, b in zip(mask, one, other, strict=False)), int64, len(mask))


def maximum(values: Array, bound: int) -> Array:
    return values._with(bound, max, int64)


def minimum(values: Array, bound: int) -> Array:
    return values._with(bound, min, int64)
