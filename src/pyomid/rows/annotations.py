"""The fields that a class declares, with their types.

A dataclass, NamedTuple or TypedDict turns its own annotations into fields. An annotation in a base class of another
kind, or in a subclass without its own `@dataclass`, looks like a field, but no row would store it. So such a class is
refused.
"""

from __future__ import annotations

import builtins
import dataclasses
import sys
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any

from pyomid.errors import MisuseType


@dataclass(frozen=True, slots=True)
class Unresolved:
    """An annotation that names an unknown type."""

    error: str


def field_names(kind: type) -> tuple[str, ...] | None:
    """Return the fields of a dataclass or NamedTuple; None for another class, whose annotations are its fields."""
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return tuple(kind._fields) if is_named_tuple(kind) else None  # type: ignore[attr-defined]


def is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def field_annotations(kind: type) -> dict[str, Any]:
    """Return the annotations of the fields, in the order of the class. `MisuseType` names an annotation that looks like
    a field but is not one."""
    names = field_names(kind)
    found: dict[str, Any] = {}
    for owner in reversed(kind.__mro__):
        annotations = {
            name: annotation for name, annotation in _resolved_annotations(owner) if not _is_class_variable(annotation)
        }
        if names is not None and not _makes_fields(owner):
            _check_are_fields(kind, owner, annotations, names)
        found.update(annotations)
    return found if names is None else {name: found.get(name, Any) for name in names}


def _check_are_fields(kind: type, owner: type, annotations: Mapping[str, Any], names: tuple[str, ...]) -> None:
    for name in annotations:
        if name not in names:
            raise MisuseType(
                f"class {kind.__name__}: {owner.__name__} annotates {name!r} but is not a dataclass, so {name!r} is "
                f"not a field and no row would store it; make {owner.__name__} a dataclass, or annotate {name!r} as "
                "ClassVar",
                column=name,
            )


def _makes_fields(kind: type) -> bool:
    return "__dataclass_fields__" in vars(kind) or "_fields" in vars(kind)


def without_qualifiers(annotation: Any) -> tuple[frozenset[str], Any]:
    """Return the qualifiers of an annotation (`Required`, `ReadOnly`, …) and the type within."""
    found = set[str]()
    while (name := qualifier(annotation)) is not None or typing.get_origin(annotation) is Annotated:
        found.add(name or "Annotated")
        annotation = typing.get_args(annotation)[0]
    return frozenset(found), annotation


def qualifier(annotation: Any) -> str | None:
    """Return the name of the outermost qualifier; None if there is none. Qualifiers are compared by name, because
    `typing_extensions` defines those of newer Pythons."""
    name = getattr(typing.get_origin(annotation), "_name", None)
    return name if name in ("ClassVar", "Final", "NotRequired", "ReadOnly", "Required") else None


def _is_class_variable(annotation: Any) -> bool:
    return annotation is typing.ClassVar or "ClassVar" in without_qualifiers(annotation)[0]


def admits_none(annotation: Any) -> bool:
    """Whether None may be a value of the annotated type."""
    _, kind = without_qualifiers(annotation)
    if kind in (None, type(None), Any, object) or isinstance(kind, typing.TypeVar):
        return True
    if (alias := aliased(kind)) is not None:
        return admits_none(alias)
    choices = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, UnionType, typing.Literal) else ()
    return any(admits_none(each) for each in choices)


def class_within(annotation: Any) -> type | None:
    """Return the class of the values, other than None, that an annotation admits; None if that is not exactly one
    class."""
    _, kind = without_qualifiers(annotation)
    if (alias := aliased(kind)) is not None:
        return class_within(alias)
    if (other := besides_none(kind)) is not None:
        return class_within(other)
    return kind if isinstance(kind, type) else None


def besides_none(kind: Any) -> Any | None:
    """Return the other type in a union of None and one type; None if the type is not such a union."""
    if typing.get_origin(kind) not in (typing.Union, UnionType):
        return None
    others = [each for each in typing.get_args(kind) if each is not type(None)]
    return others[0] if len(others) == 1 else None


def aliased(kind: Any) -> Any | None:
    """Return the type for which a `NewType` or a `type` statement stands; None for any other type."""
    if isinstance(kind, typing.NewType):
        return kind.__supertype__
    return kind.__value__ if type(kind).__name__ == "TypeAliasType" else None


def _resolved_annotations(owner: type) -> Iterator[tuple[str, Any]]:
    """Yield the annotations of one class, each resolved separately: in the class's module, then among the class's own
    names."""
    parameters = {each.__name__: each for each in getattr(owner, "__type_params__", ())}
    names = {**vars(builtins), **vars(sys.modules.get(owner.__module__, builtins)), **parameters}
    for name, annotation in _own_annotations(owner).items():
        holder = type(owner.__name__, (), {"__annotations__": {name: annotation}, "__module__": owner.__module__})
        try:
            yield name, typing.get_type_hints(holder, dict(vars(owner)), names, include_extras=True)[name]
        except Exception as error:
            yield name, Unresolved(f"{annotation!r}: {error}")


def _own_annotations(owner: type) -> Mapping[str, Any]:
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(owner, format=annotationlib.Format.FORWARDREF)
    found: Mapping[str, Any] = vars(owner).get("__annotations__", {})
    return found
