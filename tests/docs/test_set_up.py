"""`make test` and `make demo` set up a bare machine: `.ci/system` names what is missing, and the pins are whole."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.fast

REPOSITORY = Path(__file__).parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
EVERYTHING = "make gcc libc6-dev python3 python3-venv python3-dev openjdk-17-jdk-headless maven openssl"
NOBODY = 65534
OTHERS = [pytest.param(NOBODY, id="nobody")] if os.geteuid() == 0 else [pytest.param(None, id="this user")]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root")


@pytest.fixture
def programs() -> Iterator[Path]:
    """A folder to be the whole PATH, which every user can read."""
    with tempfile.TemporaryDirectory(prefix="pyomid-path-") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def offer(programs: Path, *names: str) -> None:
    for name in names:
        found = shutil.which(name)
        assert found is not None, name
        write(programs / name, f'exec {found} "$@"')  # not a link: gcc finds its parts by its own path


def pretend(programs: Path, name: str, says: str) -> None:
    write(programs / name, f"echo '{says}'")


def write(program: Path, line: str) -> None:
    program.write_text(f"#!/bin/bash\n{line}\n")
    program.chmod(0o755)


def system(programs: Path, kind: str, user: int | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/bash", "-s", "--", "--dry-run", kind],
        input=(REPOSITORY / ".ci" / "system").read_text(),
        cwd="/",
        env={"PATH": str(programs), **environment},
        user=user,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@needs_root
def test_root_with_apt_installs_what_is_missing(programs: Path) -> None:
    pretend(programs, "apt-get", "")
    done = system(programs, "setup")
    kerberos = "krb5-kdc krb5-admin-server krb5-user libkrb5-dev"
    assert done.stdout.splitlines()[0] == f"apt-get install -y {EVERYTHING}"
    assert set(done.stdout.splitlines()[1:]) <= {f"apt-get install -y {kerberos}"}  # /usr/sbin may have a KDC
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("kind", ["setup", "all"])
@pytest.mark.parametrize("user", OTHERS)
def test_another_user_gets_the_line_to_type(programs: Path, user: int | None, kind: str) -> None:
    pretend(programs, "apt-get", "")
    done = system(programs, kind, user)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert done.stderr.endswith(f"then repeat the command: sudo apt-get install -y {EVERYTHING}\n")


@pytest.mark.parametrize("user", [None, *OTHERS])
def test_without_apt_the_sentence_names_the_software(programs: Path, user: int | None) -> None:
    done = system(programs, "all", user)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert EVERYTHING in done.stderr


def test_without_java_the_environment_is_built_and_the_tests_are_not_begun(programs: Path) -> None:
    offer(programs, "make", "gcc", "openssl", "mvn")
    assert (
        system(programs, "setup", PYTHON=sys.executable).stdout
        == "make test and make demo also need: openjdk-17-jdk-headless\n"
    )
    done = system(programs, "all", PYTHON=sys.executable)
    assert done.returncode == 1
    assert "Debian's packages openjdk-17-jdk-headless contain" in done.stderr


@pytest.mark.parametrize(
    ("version", "missing"), [("1.8.0_392", True), ("11.0.2", True), ("17.0.15", False), ("25", False)]
)
def test_a_jdk_before_17_is_none(programs: Path, version: str, missing: bool) -> None:
    home = programs / "jdk" / "bin"
    home.mkdir(parents=True)
    pretend(home, "java", f'openjdk version "{version}" 2025-04-15')
    pretend(home, "javac", "")
    done = system(programs, "all", JAVA_HOME=str(home.parent))
    assert ("openjdk-17-jdk-headless" in done.stderr) is missing


def test_an_old_python_is_refused(programs: Path) -> None:
    write(programs / "python3", '[ "$1" = --version ] && echo Python 3.9.2 || exit 1')
    done = system(programs, "setup")
    assert done.returncode == 1
    assert done.stderr.startswith("Python 3.9.2 is too old: pyomid needs Python 3.11 or later; name one, as in: ")


def test_without_a_cross_compiler_the_wheel_for_aarch64_is_left_out_and_said_so(programs: Path) -> None:
    offer(programs, "dirname")
    command = ["/bin/bash", str(REPOSITORY / ".ci" / "aarch64")]
    done = subprocess.run(command, env={"PATH": str(programs)}, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(
        "no wheel for aarch64: it needs a cross compiler and an emulator (Debian: apt install "
    )


def test_ci_runs_the_readme_s_test_command() -> None:
    commands = (REPOSITORY / ".ci" / "run").read_text().splitlines()
    assert commands[-1] == "make test"
    assert re.search(r"^make test ", (REPOSITORY / "README.md").read_text(), re.MULTILINE)


def asked_for() -> Iterator[Requirement]:
    """What the extras and the dependency groups ask for; Kerberos' pins are those of requirements/kerberos.txt."""
    yield from map(Requirement, PROJECT["project"]["dependencies"])
    for extra, requirements in PROJECT["project"]["optional-dependencies"].items():
        if extra != "kerberos":
            yield from map(Requirement, requirements)
    for requirements in PROJECT["dependency-groups"].values():
        yield from (Requirement(each) for each in requirements if isinstance(each, str))


def test_every_requirement_is_pinned_by_a_version_that_it_accepts() -> None:
    lines = (REPOSITORY / "requirements" / "dev.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines)  # nothing but NAME==VERSION: no address of a registry
    versions = {canonicalize_name(name): version for name, version in pins.items()}
    for each in asked_for():
        if each.name != "pyomid":
            assert versions[canonicalize_name(each.name)] in each.specifier, each


def test_the_group_dev_has_every_group() -> None:
    groups = PROJECT["dependency-groups"]
    assert {each["include-group"] for each in groups["dev"]} == groups.keys() - {"dev"}
