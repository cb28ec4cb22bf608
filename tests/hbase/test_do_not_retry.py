"""Of a failed Multi, HBase's own "do not retry" is believed, although only the class's name is sent."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator

import pytest
from java_needed import needs_java

from pyomid.cli.hbase import HBASE, class_path
from pyomid.errors import Misuse, Unavailable
from pyomid.omid.hbase.rpc.failures import Reaction, RemoteFailure

DO_NOT_RETRY = "org/apache/hadoop/hbase/DoNotRetryIOException"
BUSY = ("ServerTooBusyException", "ThrottlingException")
"""Subclasses too, but the server, or the quota of a second, will have room again."""


def superclasses() -> dict[str, str]:
    """Of all exceptions in HBase's jars: the class that each extends."""
    found = {}
    for jar in class_path(HBASE):
        if jar.name.startswith("hbase-"):
            with zipfile.ZipFile(jar) as archive:
                for name in archive.namelist():
                    if name.startswith("org/apache/hadoop/hbase/") and name.endswith("Exception.class"):
                        found[name.removesuffix(".class")] = superclass(archive.read(name))
    return found


def superclass(code: bytes) -> str:
    """By the class file's constant pool (Java Virtual Machine Specification, 4.1 and 4.4)."""
    (count,) = struct.unpack_from(">H", code, 8)
    texts: dict[int, str] = {}
    names: dict[int, int] = {}
    at, index = 10, 1
    while index < count:
        tag = code[at]
        (short,) = struct.unpack_from(">H", code, at + 1)
        if tag == 1:
            texts[index] = code[at + 3 : at + 3 + short].decode(errors="replace")
            at += 3 + short
        elif tag in (7, 8, 16, 19, 20):
            names[index] = short
            at += 3
        else:
            at += 9 if tag in (5, 6) else 4 if tag == 15 else 5
            index += tag in (5, 6)
        index += 1
    return texts[names[struct.unpack_from(">H", code, at + 4)[0]]]


def ancestors(name: str, classes: dict[str, str]) -> Iterator[str]:
    while name in classes:
        name = classes[name]
        yield name


@pytest.mark.hbase
def test_every_subclass_of_hbase_ends_the_operation() -> None:
    """Or makes the client locate the region anew, or open another scanner; never wait."""
    needs_java()
    classes = superclasses()
    subclasses = [name for name in classes if DO_NOT_RETRY in ancestors(name, classes)]
    assert len(subclasses) > 40
    waiting = set()
    for name in subclasses:
        failure = RemoteFailure.of_pair(name.replace("/", "."), b"")
        if failure.reaction is Reaction.WAIT:
            waiting.add(failure.simple_name)
    assert waiting == set(BUSY)


@pytest.mark.parametrize(
    ("class_name", "kind", "said"),
    [
        ("org.apache.hadoop.hbase.quotas.SpaceLimitingException", Misuse, "space quota is used up"),
        ("org.apache.hadoop.hbase.constraint.ConstraintException", Misuse, "ConstraintException: no"),
        ("org.apache.hadoop.hbase.exceptions.FailedSanityCheckException", Misuse, "no"),
        ("org.apache.hadoop.hbase.exceptions.RequestTooBigException", Misuse, "no"),
        ("com.example.OnlyPositive", Misuse, "com.example.OnlyPositive: no"),
        ("org.apache.hadoop.hbase.quotas.RpcThrottlingException", Unavailable, "no"),
        ("org.apache.hadoop.hbase.RegionTooBusyException", Unavailable, "no"),
        ("java.io.IOException", Unavailable, "no"),
    ],
)
def test_a_result_of_a_multi_says_whether_retrying_helps(class_name: str, kind: type[Exception], said: str) -> None:
    """Quotas, constraints, and classes of other programs, which neither side's client knows."""
    trace = f"{class_name}: no\n\tat org.apache.hadoop.hbase.regionserver.HRegion.put".encode()
    error = RemoteFailure.of_pair(class_name, trace).as_error("writing 3 rows of t")
    assert type(error) is kind
    assert said in error.message
