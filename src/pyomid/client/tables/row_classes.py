"""Row classes: how a dataclass, NamedTuple or TypedDict gives and takes the values of a typed row.

Every field that a class declares is stored and restored, or the class is refused, by the field's name, when it is given
as a codec. So what a program puts is what it gets back:

    field(init=False)             stored; set after the class has made the row
    __post_init__, own __init__   may compute or change fields: afterwards they get the stored values again
    InitVar, own arguments        no column stores them: refused, unless they have a default
    ClassVar                      belongs to the class, not to a row
    NotRequired                   omitted from the dict if nothing is stored
    a default                     used if nothing is stored, where the field's type does not admit None: the row is
                                  older than the column. Where the type admits None, None is what was stored
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, is_typeddict

from pyomid.errors import MisuseType


class RowClass(NamedTuple):
    """`names`: of its fields. `made`: a row of the class, from the values of all columns. `taken`: the values of a
    row."""

    names: tuple[str, ...]
    made: Callable[[dict[str, Any]], Any]
    taken: Callable[[Any], Mapping[str, Any]]


def row_class(codec: object) -> RowClass | None:
    """Return how rows of this class are made and taken; None if it is no row class. `MisuseType` names a field that
    cannot be restored."""
    if is_typeddict(codec):
        return _of_typed_dict(codec)
    if not isinstance(codec, type):
        return None
    if dataclasses.is_dataclass(codec):
        return _of_dataclass(codec)
    if issubclass(codec, tuple) and hasattr(codec, "_fields"):
        return _of_named_tuple(codec)
    return None


def admits_none(annotation: Any) -> bool:
    """Whether None is a value of the annotated type; True if that is not known."""
    if annotation is None or annotation is Any or annotation is type(None) or isinstance(annotation, str):
        return True
    if hasattr(annotation, "__metadata__") or typing.get_origin(annotation) in (typing.Final, *_WRAPPERS):
        return admits_none(typing.get_args(annotation)[0])
    return any(admits_none(each) for each in _alternatives(annotation))


_WRAPPERS: Final = tuple(
    getattr(typing, name) for name in ("Required", "NotRequired", "ReadOnly") if hasattr(typing, name)
)


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    origin = typing.get_origin(annotation)
    is_union = origin is typing.Union or type(annotation).__name__ == "UnionType"
    return typing.get_args(annotation) if is_union or origin is typing.Literal else ()


def _hints(kind: Any) -> Mapping[str, Any]:
    """Return the annotations, as far as they resolve: the others count as admitting None."""
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except Exception:
        return {}


# TypedDict


def _of_typed_dict(kind: Any) -> RowClass:
    hints = _hints(kind)
    names = tuple(hints) or (*kind.__required_keys__, *kind.__optional_keys__)
    omitted = frozenset(name for name in kind.__optional_keys__ if name not in hints or not admits_none(hints[name]))
    return RowClass(names, partial(_typed_dict, names, omitted), _mapping)


def _typed_dict(names: tuple[str, ...], omitted: frozenset[str], row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in names if not (row[name] is None and name in omitted)}


def _mapping(row: Any) -> Mapping[str, Any]:
    if not isinstance(row, Mapping):
        raise MisuseType(f"row {row!r} is {type(row).__name__}, not a dict of column to value", value=row)
    return row


# NamedTuple


def _of_named_tuple(kind: Any) -> RowClass:
    defaults = {name: partial(_same, value) for name, value in getattr(kind, "_field_defaults", {}).items()}
    names = tuple(kind._fields)
    return RowClass(names, partial(_made, kind, names, _used(kind, defaults)), partial(_attributes, kind, names))


def _same(value: object) -> object:
    return value


# Dataclass


def _of_dataclass(kind: Any) -> RowClass:
    fields = dataclasses.fields(kind)
    names = tuple(field.name for field in fields)
    given = tuple(field.name for field in fields if field.init)
    _check_constructor(kind, given)
    defaults: dict[str, Callable[[], object]] = {}
    for field in fields:
        if field.default is not dataclasses.MISSING:
            defaults[field.name] = partial(_same, field.default)
        elif field.default_factory is not dataclasses.MISSING:
            defaults[field.name] = field.default_factory
    made = partial(_made, kind, given, _used(kind, defaults))
    if given != names or hasattr(kind, "__post_init__") or not kind.__dataclass_params__.init:
        made = partial(_restored, made, names)
    return RowClass(names, made, partial(_attributes, kind, names))


def _used(kind: Any, defaults: Mapping[str, Callable[[], object]]) -> dict[str, Callable[[], object]]:
    hints = _hints(kind)
    return {name: default for name, default in defaults.items() if name in hints and not admits_none(hints[name])}


def _check_constructor(kind: Any, given: tuple[str, ...]) -> None:
    """Refuse a class that cannot be made from the values of its fields."""
    parameters = inspect.signature(kind).parameters
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for name in given:
        if not takes_any and (name not in parameters or parameters[name].kind not in by_name):
            raise MisuseType(
                f"class {kind.__name__} cannot be a codec: its __init__ does not take the field {name!r} by name, so "
                "a row cannot be made of stored values; let the dataclass make __init__",
                column=name,
            )
    for name, parameter in parameters.items():
        variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        if name not in given and parameter.default is inspect.Parameter.empty and parameter.kind not in variable:
            raise MisuseType(
                f"class {kind.__name__} cannot be a codec: its __init__ needs {name!r}, which is not a field, so no "
                "column stores it; give it a default",
                column=name,
            )


def _made(kind: Any, given: tuple[str, ...], defaults: Mapping[str, Callable[[], object]], row: dict[str, Any]) -> Any:
    for name, default in defaults.items():
        if row[name] is None:
            row[name] = default()
    return kind(**{name: row[name] for name in given})


def _restored(make: Callable[[dict[str, Any]], Any], names: tuple[str, ...], row: dict[str, Any]) -> Any:
    """Make a row, and set its fields to the stored values: the class may have computed others."""
    made = make(row)
    for name in names:
        object.__setattr__(made, name, row[name])
    return made


def _attributes(kind: Any, names: tuple[str, ...], row: object) -> Mapping[str, Any]:
    if not isinstance(row, kind):
        raise MisuseType(f"row {row!r} is {type(row).__name__}, not {kind.__name__}", value=row)
    try:
        return {name: getattr(row, name) for name in names}
    except AttributeError as error:
        raise MisuseType(f"a row of {kind.__name__} lacks a field: {error}; set it before put", value=kind) from error
