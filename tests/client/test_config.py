"""URLs and options: what they mean, and what is refused with which hint."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest

import pyomid
from pyomid.config import (
    _OF_FOLDER,
    EmbeddedAddress,
    HBaseAddress,
    MemoryAddress,
    Options,
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


def test_type_checkers_and_editors_know_the_settings_in_their_order() -> None:
    of_settings, of_options = get_type_hints(Settings), get_type_hints(Options)
    assert list(of_options.items()) == [(option.name, of_settings[option.name]) for option in fields(Settings)]
    assert not Options.__required_keys__


def test_options_come_from_the_query_and_from_keywords_in_any_spelling() -> None:
    _, settings = parse_url(
        "omid-memory:db?leaseSeconds=7&maxTransactionAgeSeconds=9", flush_bytes=5, SCANBATCHROWS="3"
    )
    assert settings == Settings(lease_seconds=7.0, max_transaction_age_seconds=9.0, flush_bytes=5, scan_batch_rows=3)


@pytest.mark.parametrize("name", list(Settings.__dataclass_fields__))
def test_every_setting_is_an_option_under_its_url_spelling_and_as_spark_lowers_it(name: str) -> None:
    assert option_name(camel_case(name)) == name
    assert option_name(camel_case(name).lower()) == name


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("omi:///db", "did you mean omid:?"),
        ("mysql://x", "does not begin with"),
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
        ("omid:///db?leaseSeconds=-1", "below the minimum"),
        ("omid:///db?leaseSeconds=nan", "leaseSeconds=nan is not a finite number"),
        ("omid:///db?leaseSeconds=1e400", "leaseSeconds=inf is not a finite number"),
        ("omid:///db?leaseSeconds=1&lease_seconds=2", "twice"),
        ("omid+hbase://zk/hbase?ceiling=zookeper", "not one of hbase, zookeeper; did you mean zookeeper?"),
        ("omid+hbase://zk/hbase?durability=disk", "not one of table, sync, fsync"),
        ("omid+hbase://zk/hbase?othersSeal=perhaps", "neither true nor false"),
        ("omid+hbase://zk/hbase?durabilty=fsync", "did you mean durability?"),
        ("omid:///db?durability=fsync", "only for omid+hbase:// URLs"),
        ("omid:///db?tokenFile=/etc/token", "only for omid+hbase:// URLs"),
        ("omid:///db?requestSeconds=1", "the folder 'omid:///db?requestSeconds=1' has no TSO; omit it"),
        ("omid:///db?conflictMapEntries=64", "option conflictMapEntries is only for a database with a TSO"),
        ("omid:///db?reported_ids_max=64", "option reportedIdsMax is only for a database with a TSO"),
        ("omid-memory:db?create=false", "option create is only for a folder (omid:///folder)"),
        ("omid+hbase://zk/hbase?create=true", "not for 'omid+hbase://zk/hbase?create=true'; omit it"),
        ("omid+hbase://zk/hbase?upkeepShare=0", "option upkeepShare is only for a folder (omid:///folder)"),
        ("omid+hbase://zk/hbase?map_size_gib=1", "option mapSizeGib is only for a folder (omid:///folder)"),
        ("omid-memory:db?folderAccess=group", "option folderAccess is only for a folder (omid:///folder)"),
    ],
)
def test_a_bad_url_is_refused_with_the_value_and_the_rule(url: str, said: str) -> None:
    with pytest.raises(Misuse) as caught:
        parse_url(url)
    assert said in str(caught.value)


@pytest.mark.parametrize("character", ["\n", "\t", "\r", "\0", "\x1b", "\x7f", "\x85", "\udc80"])
@pytest.mark.parametrize(
    "url",
    [
        "omid:///a{}b",
        "{}omid:///ab",
        "om{}id:///ab",
        "omid:///ab{}",
        "omid:///ab?create{}=true",
        "omid:///ab?create=true{}",
        "omid-memory:a{}b",
        "omid+hbase://zk{}:2181/hbase",
        "omid+hbase://zk:2181/hb{}ase",
        "omid+hbase://zk:2181/hbase?tokenFile=/a{}b",
    ],
)
def test_a_control_character_in_a_url_is_refused(url: str, character: str) -> None:
    """`urlsplit` drops some of them, so that another folder than the named one would be opened."""
    with pytest.raises(Misuse, match="control characters") as caught:
        parse_url(url.format(character))
    assert repr(character)[1:-1] in str(caught.value)


@pytest.mark.parametrize("escape", ["%00", "%0A", "%09", "%7F", "%C2%85"])
@pytest.mark.parametrize(
    "url", ["omid:///a{}b", "omid+hbase://zk/hb{}ase", "omid-memory:a{}b", "omid+hbase://zk/hbase?keytab={}"]
)
def test_a_control_character_behind_a_percent_sign_is_refused(url: str, escape: str) -> None:
    with pytest.raises(Misuse, match="control characters"):
        parse_url(url.format(escape))


@pytest.mark.parametrize("url", ["omid:///a%FFb", "omid:///a%ED%B2%80b", "omid+hbase://zk/hbase?keytab=%FF"])
def test_a_url_that_is_not_utf_8_names_no_other_folder(url: str) -> None:
    with pytest.raises(Misuse, match="not UTF-8"):
        parse_url(url)


@pytest.mark.parametrize("url", ["omid://[a/db", "omid://a\u2100b/db"])
def test_what_python_cannot_split_is_refused_as_any_bad_url(url: str) -> None:
    with pytest.raises(Misuse, match="malformed"):
        parse_url(url)


@pytest.mark.parametrize("option", ["token_file", "tls_ca", "principal", "retention", "ceiling"])
@pytest.mark.parametrize("value", ["a\nb", "a\n", "\0"])
def test_a_control_character_in_an_option_is_refused(option: str, value: str) -> None:
    with pytest.raises(Misuse, match="control characters"):
        parse_url("omid+hbase://zk/hbase", **{option: value})


@pytest.mark.parametrize("path", ["/a\0b", "/a\nb", "/a\udc80b"])
def test_a_path_follows_the_rules_of_a_url_s(tmp_path: Path, path: str) -> None:
    with pyomid.connect(f"omid://{tmp_path}/db") as db:
        for call in (
            lambda: db.backup(path),
            lambda: db.backup(tmp_path / "b", since=Path(path)),
            lambda: db.export_parquet(path),
            lambda: db.import_parquet(path),
            lambda: pyomid.restore(path, f"omid://{tmp_path}/r"),
        ):
            with pytest.raises(Misuse, match="control characters"):
                call()
        with pytest.raises(MisuseType, match="path 3 is int"):
            db.backup(3)  # type: ignore[arg-type]


def test_words_and_switches_are_options_of_hbase() -> None:
    url = "omid+hbase://zk/hbase?ceiling=zookeeper&durability=fsync&othersSeal=true"
    _, settings = parse_url(url)
    assert (settings.ceiling, settings.durability, settings.others_seal) == ("zookeeper", "fsync", True)


@pytest.mark.parametrize("option", _OF_FOLDER)
def test_an_option_of_a_folder_is_refused_as_a_keyword_too(option: str) -> None:
    default = getattr(Settings(), option)
    assert getattr(parse_url("omid:///db", **{option: default})[1], option) == default
    for url in ("omid-memory:db", "omid+hbase://zk/hbase"):
        with pytest.raises(Misuse, match=f"option {camel_case(option)} is only for a folder"):
            parse_url(url, **{option: default})


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
        ("tlsCert=/x", "need option tlsCa"),
        ("keytab=/x", "need authentication=kerberos"),
        ("authentication=kerberos&rpcProtection=encrypted", "not one of"),
    ):
        with pytest.raises(Misuse, match=said):
            pyomid.connect(f"omid+hbase://127.0.0.1:1/hbase?{options}")


def test_an_option_that_is_gone_has_no_effect(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="pyomid.config")
    address, settings = parse_url(f"omid://{tmp_path}/db?tsoIdleExitSeconds=5&leaseSeconds=7", tso_idle_exit_seconds=1)
    assert (address, settings.lease_seconds) == (EmbeddedAddress(f"{tmp_path}/db"), 7)
    assert caplog.messages == [
        f"option {name} has no effect: no TSO runs beside a folder any more; omit it"
        for name in ("tsoIdleExitSeconds", "tso_idle_exit_seconds")
    ]
