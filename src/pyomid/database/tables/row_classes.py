"""Row classes: how values of a typed row become an object of a dataclass, NamedTuple or TypedDict, and vice versa.

A program gets back exactly what it puts: every field is stored and restored. Otherwise the class is refused when it is
given as a codec, with an error that names the field.

    field(init=False)          is stored, and is set after the class has made the row
    own code of a class        (`__init__`, `__post_init__`, `__setattr__`) may compute and change fields; afterwards
                               every field gets its stored value again
    InitVar, own arguments     are refused unless they have a default, because no column stores them
    a property, a descriptor   is refused as a field, because setting it need not restore the value that it returned
    a subclass                 is refused if a row is put, because the subclass's own fields would be lost
    NotRequired                is omitted from the dict if nothing is stored and the type does not admit None
    a default                  is used if nothing is stored and the field's type does not admit None: the row is older
                               than the column. If the type admits None, the field gets None, which was stored. If it
                               does not, None is refused, because a read would return the default instead

The default of a computed field (`init=False`) is the value that the class computes.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from types import MemberDescriptorType
from typing import Any, NamedTuple, is_typeddict

from pyomid.errors import MisuseType
from pyomid.rows.annotations import (
    Unresolved,
    admits_none,
    class_within,
    field_annotations,
    is_named_tuple,
    without_qualifiers,
)
from pyomid.rows.column_types import COLUMN_CLASSES

Defaults = Mapping[str, Callable[[], object]]


class RowClass(NamedTuple):
    """How rows of a class are made and taken. `names` are the names of its fields. `classes` has the class of each
    field that is annotated with the class of a column's values. `made` makes a row from the values of all columns.
    `taken` returns the values of a row."""

    names: tuple[str, ...]
    classes: Mapping[str, type]
    made: Callable[[dict[str, Any]], Any]
    taken: Callable[[Any], Mapping[str, Any]]


@lru_cache(maxsize=256)
def row_class(kind: type) -> RowClass | None:
    """Return how rows of this class are made and taken; None if it is not a row class. `MisuseType` names a field that
    cannot be restored."""
    if is_typeddict(kind) or (issubclass(kind, dict) and hasattr(kind, "__required_keys__")):  # of typing_extensions
        return _of_typed_dict(kind)
    if dataclasses.is_dataclass(kind):
        rows = _Dataclass(kind)
        return RowClass(rows.names, _classes(kind), rows.made, rows.taken)
    return _of_named_tuple(kind) if is_named_tuple(kind) else None


def _classes(kind: type) -> Mapping[str, type]:
    found = {name: class_within(annotation) for name, annotation in field_annotations(kind).items()}
    return {name: each for name, each in found.items() if each in COLUMN_CLASSES}


def _same(value: object) -> object:
    return value


def _defaults(kind: type, declared: Defaults) -> Defaults:
    """Return the defaults of the fields whose types do not admit None."""
    annotations = field_annotations(kind)
    for name in declared:
        found = annotations[name]
        if isinstance(found, Unresolved):
            raise MisuseType(
                f"class {kind.__name__} cannot be a codec: the default of {name!r} depends on whether it may be None, "
                f"but its annotation does not resolve ({found.error}); import or define the missing name in the "
                "class's module",
                column=name,
            )
    return {name: default for name, default in declared.items() if not admits_none(annotations[name])}


def _check_no_none(kind: type, values: Mapping[str, Any], names: Mapping[str, object] | frozenset[str]) -> None:
    for name in names:
        if name in values and values[name] is None:
            raise MisuseType(
                f"a row of {kind.__name__}: {name!r} is None, which a read could not restore, because its type does "
                f"not admit None; annotate {name!r} as … | None, or give it a value",
                column=name,
            )


def _check_is(kind: type, row: object) -> None:
    if type(row) is not kind:
        hint = f"; give codec={type(row).__name__}" if isinstance(row, kind) else ""
        raise MisuseType(f"row {row!r} is {type(row).__name__}, not {kind.__name__}{hint}", value=row)


# TypedDict


def _of_typed_dict(kind: Any) -> RowClass:
    annotations = field_annotations(kind)
    qualifiers = {name: without_qualifiers(annotation)[0] for name, annotation in annotations.items()}
    optional = frozenset(  # the class itself does not see a qualifier in an annotation that is text
        name
        for name, found in qualifiers.items()
        if "NotRequired" in found or (name in kind.__optional_keys__ and "Required" not in found)
    )
    omitted = frozenset(_defaults(kind, dict.fromkeys(optional, dict)))
    names = tuple(annotations)
    mapping = partial(_mapping, kind, names, optional, omitted)
    return RowClass(names, _classes(kind), partial(_typed_dict, names, omitted), mapping)


def _typed_dict(names: tuple[str, ...], omitted: frozenset[str], row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in names if not (row[name] is None and name in omitted)}


def _mapping(
    kind: type, names: tuple[str, ...], optional: frozenset[str], omitted: frozenset[str], row: Any
) -> Mapping[str, Any]:
    if not isinstance(row, Mapping):
        raise MisuseType(f"row {row!r} is {type(row).__name__}, not a dict of column to value", value=row)
    for name in names:
        if name not in row and name not in optional:
            raise MisuseType(f"row {row!r} lacks the key {name!r} of {kind.__name__}", column=name)
    for name in row:
        if name not in names:
            raise MisuseType(f"row {row!r} has the key {name!r}, which {kind.__name__} does not declare", column=name)
    _check_no_none(kind, row, omitted)
    return row


# NamedTuple


def _of_named_tuple(kind: Any) -> RowClass:
    names = tuple(kind._fields)
    defaults = _defaults(
        kind,
        {
            name: partial(_same, value)
            for name, value in getattr(kind, "_field_defaults", {}).items()
            if value is not None
        },
    )
    items = partial(_items, kind, names, defaults)
    return RowClass(names, _classes(kind), partial(_named_tuple, kind, names, defaults), items)


def _named_tuple(kind: Any, names: tuple[str, ...], defaults: Defaults, row: dict[str, Any]) -> Any:
    for name, default in defaults.items():
        if row[name] is None:
            row[name] = default()
    return tuple.__new__(kind, [row[name] for name in names])  # a class's own __new__ may change values


def _items(kind: type, names: tuple[str, ...], defaults: Defaults, row: Any) -> Mapping[str, Any]:
    _check_is(kind, row)
    values = dict(zip(names, tuple.__iter__(row), strict=True))
    _check_no_none(kind, values, defaults)
    return values


# Dataclass


class _Dataclass:
    """Makes rows of a dataclass, and takes their values."""

    def __init__(self, kind: Any) -> None:
        fields = dataclasses.fields(kind)
        self.names = tuple(field.name for field in fields)
        self._kind = kind
        self._given = tuple(field.name for field in fields if field.init)
        self._computed = _defaults(kind, {field.name: dict for field in fields if not field.init})
        self._defaults = _defaults(kind, {field.name: _default(field) for field in fields if _has_default(field)})
        self._never_none = frozenset((*self._computed, *self._defaults))
        self._is_plain = self._given == self.names and not _runs_own_code(kind)
        _check_attributes(kind, self.names)
        _check_constructor(kind, self._given)

    def made(self, row: dict[str, Any]) -> Any:
        for name, default in self._defaults.items():
            if row[name] is None:
                row[name] = default()
        made = self._kind(**{name: row[name] for name in self._given})
        if self._is_plain:
            return made
        for name in self.names:
            value = row[name]
            if value is not None or name not in self._computed or not hasattr(made, name):
                object.__setattr__(made, name, value)
        return made

    def taken(self, row: object) -> Mapping[str, Any]:
        _check_is(self._kind, row)
        try:
            values = {name: getattr(row, name) for name in self.names}
        except AttributeError as error:
            raise MisuseType(
                f"a row of {self._kind.__name__} lacks a field: {error}; set it before put", value=self._kind
            ) from error
        _check_no_none(self._kind, values, self._never_none)
        if not self._is_plain:
            self._check_is_made_again(values)
        return values

    def _check_is_made_again(self, values: dict[str, Any]) -> None:
        """Raise `MisuseType` if the class's own code refuses the values of a finished row: no `get` could return that
        row."""
        try:
            self.made(dict(values))
        except Exception as error:
            raise MisuseType(
                f"a row of {self._kind.__name__} cannot be rebuilt from its fields: {error!r}; its __init__ and "
                "__post_init__ must accept the values of a finished row",
                value=self._kind,
            ) from error


def _has_default(field: dataclasses.Field[Any]) -> bool:
    has_value = field.default is not dataclasses.MISSING and field.default is not None
    return field.init and (has_value or field.default_factory is not dataclasses.MISSING)


def _default(field: dataclasses.Field[Any]) -> Callable[[], object]:
    factory = field.default_factory
    return partial(_same, field.default) if factory is dataclasses.MISSING else factory


def _runs_own_code(kind: Any) -> bool:
    """Whether making a row runs more code than the dataclass has generated; such code may change or refuse values."""
    code = getattr(kind.__init__, "__code__", None)
    is_generated = code is not None and code.co_filename == "<string>"
    sets_itself = not kind.__dataclass_params__.frozen and kind.__setattr__ is not object.__setattr__
    return hasattr(kind, "__post_init__") or not is_generated or sets_itself or kind.__new__ is not object.__new__


def _check_attributes(kind: type, names: tuple[str, ...]) -> None:
    for name in names:
        attribute = inspect.getattr_static(kind, name, None)
        if hasattr(type(attribute), "__get__") and not isinstance(attribute, MemberDescriptorType):  # a slot
            raise MisuseType(
                f"class {kind.__name__} cannot be a codec: its field {name!r} is computed by a "
                f"{type(attribute).__name__} of the class, so a stored value could not be restored; give the field "
                "and the property different names",
                column=name,
            )


def _check_constructor(kind: Any, given: tuple[str, ...]) -> None:
    """Refuse a class whose objects cannot be made from the values of their fields."""
    if inspect.isabstract(kind) or getattr(kind, "_is_protocol", False):
        raise MisuseType(f"class {kind.__name__} cannot be a codec: it is abstract, so pyomid cannot create rows of it")
    parameters = inspect.signature(kind).parameters
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for name in given:
        if not takes_any and (name not in parameters or parameters[name].kind not in by_name):
            raise MisuseType(
                f"class {kind.__name__} cannot be a codec: its __init__ does not take the field {name!r} by name, so "
                "pyomid cannot create a row from stored values; let the dataclass generate __init__",
                column=name,
            )
    for name, parameter in parameters.items():
        variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        if name not in given and parameter.default is inspect.Parameter.empty and parameter.kind not in variable:
            raise MisuseType(
                f"class {kind.__name__} cannot be a codec: its __init__ needs {name!r}, which is not a field, so no "
                "column stores it; give this parameter a default",
                column=name,
            )
