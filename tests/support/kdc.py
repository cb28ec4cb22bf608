"""A real Kerberos KDC of MIT on the loopback, with a realm of its own: as any user, in a folder of the test.

with Kdc(folder) as kdc:
    keytab = kdc.add("alice@TEST.PYOMID", lifetime="10h")
    subprocess.run(..., env=os.environ | kdc.environment)
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Final

import pytest

REALM: Final = "TEST.PYOMID"


def missing() -> str | None:
    """Why no KDC can run here; None if one can."""
    for name, package in (("krb5kdc", "krb5-kdc"), ("kadmin.local", "krb5-admin-server"), ("kinit", "krb5-user")):
        if _tool(name) is None:
            return f"{name} is not on this machine (Debian: {package})"
    return None if find_spec("gssapi") else "the extra kerberos is not installed"


@contextmanager
def running_kdc(folder: Path) -> Iterator[Kdc]:
    """A KDC that this process and its children use, who have no ticket. Skips where none can run; CI installs one."""
    if reason := missing():
        pytest.skip(f"not run: the tests of Kerberos: {reason}")
    with Kdc(folder) as kdc, pytest.MonkeyPatch.context() as environment:
        for name, value in {**kdc.environment, "KRB5CCNAME": f"FILE:{folder}/no-cache"}.items():
            environment.setenv(name, value)
        yield kdc


class Kdc:
    """One KDC. `environment` points MIT's tools and library at it, `krb5_conf` Java's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.krb5_conf = folder / "krb5.conf"
        self.environment = {"KRB5_CONFIG": str(self.krb5_conf), "KRB5_KDC_PROFILE": str(folder / "kdc.conf")}
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._write()
        self._run("kdb5_util", "create", "-s", "-P", "not a secret")

    def start(self, *, ahead_s: int = 0) -> None:
        """Returns when it listens. Its clock is so far ahead of all others of this machine."""
        environment = os.environ | self.environment
        if ahead_s:
            environment["LD_PRELOAD"] = str(self._clock_ahead(ahead_s))
        with open(self.folder / "kdc.log", "ab") as log:
            self._process = subprocess.Popen(
                [str(_tool("krb5kdc")), "-n"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        ends_s = time.monotonic() + 30.0
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > ends_s:
                raise RuntimeError(f"the KDC did not start: {(self.folder / 'kdc.log').read_text()}")
            time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def add(self, principal: str, *, keytab: str = "", lifetime: str = "1d") -> Path:
        """Adds it, with a random key; returns the keytab with the key. Keys of several may be in one file."""
        self._run("kadmin.local", "-q", f"addprinc -randkey -maxlife {lifetime} {principal}")
        return self.export(principal, keytab=keytab)

    def export(self, principal: str, *, keytab: str = "") -> Path:
        """Puts the key of the principal, which stays what it is, into a keytab."""
        path = self.folder / (keytab or f"{principal.replace('/', '_')}.keytab")
        self._run("kadmin.local", "-q", f"ktadd -norandkey -k {path} {principal}")
        return path

    def change_key(self, principal: str) -> None:
        """What keytabs hold of it is of no use any more."""
        self._run("kadmin.local", "-q", f"change_password -randkey {principal}")

    def remove(self, principal: str) -> None:
        self._run("kadmin.local", "-q", f"delprinc -force {principal}")

    def kinit(self, principal: str, keytab: Path, cache: Path, *, lifetime: str = "1d") -> None:
        """Puts a ticket into the cache."""
        self._run("kinit", "-l", lifetime, "-k", "-t", str(keytab), "-c", str(cache), principal)

    def __enter__(self) -> Kdc:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _run(self, name: str, *arguments: str) -> None:
        subprocess.run(
            [str(_tool(name)), *arguments],
            env=os.environ | self.environment,
            stdin=subprocess.DEVNULL,
            check=True,
            capture_output=True,
        )

    def _clock_ahead(self, seconds: int) -> Path:
        library = self.folder / f"ahead-{seconds}.so"
        command = ["gcc", "-shared", "-fPIC", "-x", "c", "-o", str(library), f"-DAHEAD_S={seconds}", "-", "-ldl"]
        subprocess.run(command, input=_CLOCK, text=True, check=True)
        return library

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _write(self) -> None:
        self.krb5_conf.write_text(f"""[libdefaults]
    default_realm = {REALM}
    dns_lookup_kdc = false
    dns_lookup_realm = false
    dns_canonicalize_hostname = false
    rdns = false
    udp_preference_limit = 1
[realms]
    {REALM} = {{
        kdc = 127.0.0.1:{self.port}
    }}
[domain_realm]
    localhost = {REALM}
""")
        (self.folder / "kdc.conf").write_text(f"""[kdcdefaults]
    kdc_listen = ""
    kdc_tcp_listen = 127.0.0.1:{self.port}
[realms]
    {REALM} = {{
        database_name = {self.folder}/principal
        key_stash_file = {self.folder}/stash
        acl_file = {self.folder}/kadm5.acl
        max_life = 1d
        supported_enctypes = aes256-cts:normal aes128-cts:normal
    }}
""")


_CLOCK: Final = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += AHEAD_S;
    return code;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (at) *at = found.tv_sec;
    return found.tv_sec;
}
"""


def _tool(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
