"""URLs and options: what they mean, and what is refused with which hint."""

from __future__ import annotations

from pathlib import Path

import pytest

import pyomid
from pyomid.config import (
    EmbeddedAddress,
    HBaseAddress,
    MemoryAddress,
    Settings,
    camel_case,
    make_settings,
    option_name,
    parse_url,
)
from pyomid.errors import Misuse, MisuseType

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("omid:///var/lib/db", EmbeddedAddress("/var/lib/db")),
        ("omid:///var/lib/a%20b/", EmbeddedAddress("/var/lib/a b")),
        ("omid-memory:test", MemoryAddress("test")),
        ("omid+hbase://zk1:2181,zk2:2182/hbase", HBaseAddress("zk1:2181,zk2:2182", "/hbase")),
        ("omid+hbase://zk1,zk2:2182", HBaseAddress("zk1:2181,zk2:2182", "/hbase")),
    ],
)
def test_each_scheme_names_its_address(url: str, address: object) -> None:
    assert parse_url(url)[0] == address


def test_options_come_from_the_query_and_from_keywords_in_any_spelling() -> None:
    _, settings = parse_url("omid:///db?leaseSeconds=7&maxTransactionAge=9", flush_bytes=5, SCANBATCHROWS="3")
    assert settings == Settings(lease_seconds=7.0, max_transaction_age_seconds=9.0, flush_bytes=5, scan_batch_rows=3)


@pytest.mark.parametrize("name", list(Settings.__dataclass_fields__))
def test_every_setting_is_an_option_under_its_url_spelling_and_as_spark_lowers_it(name: str) -> None:
    assert option_name(camel_case(name)) == name
    assert option_name(camel_case(name).lower()) == name


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("omi:///db", "did you mean omid:?"),
        ("mysql://x", "begins with none of"),
        ("omid://host/db", "names a host 'host'"),
        ("omid:relative", "no absolute folder"),
        ("omid:///", "no absolute folder"),
        ("omid:///db#x", "fragment"),
        ("omid-memory:", "names no database"),
        ("omid+hbase:///hbase", "no ZooKeeper server"),
        ("omid+hbase://zk:port/hbase", "not host:port"),
        ("omid:///db?leaseSecond=3", "did you mean leaseSeconds?"),
        ("omid:///db?qqq=3", "known: leaseSeconds"),
        ("omid:///db?leaseSeconds", "not name=value"),
        ("omid:///db?leaseSeconds=soon", "leaseSeconds='soon' is not a number"),
        ("omid:///db?flushBytes=1.5", "flushBytes='1.5' is not a whole number"),
        ("omid:///db?leaseSeconds=-1", "below its least value"),
        ("omid:///db?leaseSeconds=nan", "below its least value"),
        ("omid:///db?leaseSeconds=1&lease_seconds=2", "twice"),
        ("omid+hbase://zk/hbase?ceiling=zookeper", "none of hbase, zookeeper; did you mean zookeeper?"),
        ("omid+hbase://zk/hbase?durability=disk", "none of table, sync, fsync"),
        ("omid+hbase://zk/hbase?othersSeal=perhaps", "neither true nor false"),
        ("omid+hbase://zk/hbase?durabilty=fsync", "did you mean durability?"),
        ("omid:///db?durability=fsync", "of omid+hbase:// alone"),
        ("omid:///db?tokenFile=/etc/token", "of omid+hbase:// alone"),
    ],
)
def test_a_bad_url_is_refused_with_the_value_and_the_rule(url: str, said: str) -> None:
    with pytest.raises(Misuse) as caught:
        parse_url(url)
    assert said in str(caught.value)


def test_words_and_switches_are_options_of_hbase() -> None:
    url = "omid+hbase://zk/hbase?ceiling=zookeeper&durability=fsync&othersSeal=true"
    _, settings = parse_url(url)
    assert (settings.ceiling, settings.durability, settings.others_seal) == ("zookeeper", "fsync", True)


def test_an_option_given_twice_must_agree() -> None:
    assert parse_url("omid:///db?leaseSeconds=3", lease_seconds=3.0)[1].lease_seconds == 3.0
    with pytest.raises(Misuse, match="twice"):
        parse_url("omid:///db?leaseSeconds=3", lease_seconds=4.0)


@pytest.mark.parametrize("value", [None, True, [], b"3"])
def test_an_option_of_the_wrong_type_is_a_type_error(value: object) -> None:
    with pytest.raises(MisuseType):
        make_settings({"lease_seconds": value})


def test_a_url_that_is_no_text_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        parse_url(b"omid:///db")  # type: ignore[arg-type]


def test_what_shall_be_shown_to_a_tso_is_read_before_anything_is_dialled(tmp_path: Path) -> None:
    """No ZooKeeper is there: what is told first is what the program can mend."""
    empty = tmp_path / "empty"
    empty.touch()
    for options, said in (
        (f"tokenFile={tmp_path}/none", "No such file"),
        (f"tokenFile={empty}", "is empty"),
        (f"tlsCa={empty}", "tlsCa"),
        ("tlsCert=/x", "need tlsCa"),
        ("keytab=/x", "need authentication=kerberos"),
        ("authentication=kerberos&rpcProtection=encrypted", "none of"),
    ):
        with pytest.raises(Misuse, match=said):
            pyomid.connect(f"omid+hbase://127.0.0.1:1/hbase?{options}")
