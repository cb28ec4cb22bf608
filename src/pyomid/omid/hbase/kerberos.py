"""The Kerberos identity of this process, by MIT's library: tickets come from a keytab or from the ticket cache.

    kerberos = Kerberos(KerberosOptions(principal="app@EXAMPLE.COM", keytab="/etc/app.keytab"))
    context = kerberos.context("hbase/_HOST@EXAMPLE.COM", "host1.example.com")

Like `kinit`, the library uses `/etc/krb5.conf` (KRB5_CONFIG) and the user's ticket cache (KRB5CCNAME). Each context
uses the current tickets. With a keytab, the library keeps tickets in memory and renews them after half of their
lifetime. A ticket cache must be refreshed by another process.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from pyomid.errors import Corruption, ExtraMissing, Misuse
from pyomid.omid.hbase.sasl import Protection

_caches: Final = itertools.count(1)


@dataclass(frozen=True, slots=True)
class KerberosOptions:
    """The URL's options (`config.Settings`). `hbase_principal` and `zookeeper_principal` are the servers' principals,
    with _HOST for the name of each host. `zookeeper_principal` is empty for a ZooKeeper without SASL."""

    principal: str = ""
    keytab: str = ""
    hbase_principal: str = "hbase/_HOST"
    zookeeper_principal: str = "zookeeper/_HOST"
    protection: Protection | None = None
    run_as: str | None = None


class KerberosFailed(Exception):
    """There is no ticket, or none that the server accepts. `may_pass` says whether a retry may succeed."""

    def __init__(self, message: str, *, may_pass: bool = False) -> None:
        super().__init__(message)
        self.may_pass = may_pass


class Kerberos:
    """The identity of one user. Raises `Misuse` if the library or the keytab is missing."""

    def __init__(self, options: KerberosOptions) -> None:
        try:
            import gssapi
        except ImportError as error:
            raise ExtraMissing(
                "authentication=kerberos needs the extra kerberos: pip install 'pyomid[kerberos]', which compiles "
                f"gssapi with gcc and Kerberos' headers (Debian: libkrb5-dev): {error}",
                extra="kerberos",
            ) from error
        if options.keytab and not options.principal:
            raise Misuse("option keytab needs option principal, which names the key in the keytab file")
        if options.keytab and not os.access(options.keytab, os.R_OK):
            raise Misuse(f"option keytab={options.keytab!r}: the file does not exist, or this user may not read it")
        self._gssapi: Any = gssapi
        self.options = options
        self._kdc_error: str | None = None
        self._retry_at_s = 0.0
        self._cache = f"MEMORY:pyomid-{os.getpid()}-{next(_caches)}"

    def context(self, service: str, host: str) -> KerberosContext:
        """Return the security context for a server; its method `begin` creates the first token."""
        return KerberosContext(self, service.replace("_HOST", host.lower()))

    def begin(self, service: str) -> tuple[Any, bytes]:
        """Return gssapi's context and its first token. May wait for the KDC, for half a minute if a firewall drops the
        requests. After such a failure, callers get the same error at once for the same time."""
        began_s = time.monotonic()
        if self._kdc_error is not None and began_s < self._retry_at_s:
            raise KerberosFailed(self._kdc_error, may_pass=True)
        try:
            with self.explained(service):
                context = self._context(service)
                return context, context.step() or b""
        except KerberosFailed as error:
            if error.may_pass:
                now_s = time.monotonic()
                self._retry_at_s, self._kdc_error = now_s + (now_s - began_s), str(error)
            raise

    def _context(self, service: str) -> Any:
        gssapi, options = self._gssapi, self.options
        name = None
        if options.principal:
            name = gssapi.Name(options.principal, gssapi.NameType.kerberos_principal)
        store = {"client_keytab": f"FILE:{options.keytab}", "ccache": self._cache} if options.keytab else None
        flags = gssapi.RequirementFlag
        return gssapi.SecurityContext(
            name=self._server_name(service),
            creds=gssapi.Credentials(name=name, usage="initiate", mechs=[gssapi.MechType.kerberos], store=store),
            mech=gssapi.MechType.kerberos,
            usage="initiate",
            flags=flags.mutual_authentication
            | flags.integrity
            | flags.confidentiality
            | flags.replay_detection
            | flags.out_of_sequence_detection,
        )

    @contextmanager
    def explained(self, service: str) -> Iterator[None]:
        """Raise the library's errors as `KerberosFailed`, each with one sentence of explanation."""
        try:
            yield
        except self._gssapi.exceptions.GSSError as error:
            raise self._explanation(error, service) from error

    def _server_name(self, service: str) -> Any:
        """Return the server's name. If it has no realm, krb5.conf determines the host's realm."""
        gssapi = self._gssapi
        kind, slash, host = service.partition("/")
        if "@" in service or not slash:
            return gssapi.Name(service, gssapi.NameType.kerberos_principal)
        return gssapi.Name(f"{kind}@{host}", gssapi.NameType.hostbased_service)

    def _explanation(self, error: Any, service: str) -> KerberosFailed:
        code = error.min_code - (1 << 32) if error.min_code >= 1 << 31 else error.min_code
        options = self.options
        text = _NO_KEY if options.keytab and code in _NO_TICKET_CODES else _SENTENCES.get(code)
        if text is None and isinstance(error, self._gssapi.exceptions.ExpiredCredentialsError):
            text = _SENTENCES[_TICKET_EXPIRED]
        source = f"the keytab {options.keytab}" if options.keytab else "the ticket cache"
        text = (text or "{client} and {service} cannot authenticate each other").format(
            client=options.principal or "the user", service=service, source=source
        )
        return KerberosFailed(f"Kerberos: {text} ({_minor_text(error)})", may_pass=code in _MAY_PASS)


class KerberosContext:
    """The client's end of one security context (`sasl.GssContext`). Only `begin` needs the KDC."""

    def __init__(self, kerberos: Kerberos, service: str) -> None:
        self.service = service
        self._kerberos = kerberos
        self._context: Any = None

    def begin(self) -> bytes:
        """Return the first token. May wait for the KDC. Raises `KerberosFailed` if there is no ticket."""
        self._context, token = self._kerberos.begin(self.service)
        return token

    @property
    def is_complete(self) -> bool:
        with self._kerberos.explained(self.service):  # this property raises the error of the last step
            return bool(self._context.complete)

    def step(self, token: bytes) -> bytes:
        with self._kerberos.explained(self.service):
            return self._context.step(token) or b""

    def wrap(self, message: bytes, *, encrypted: bool) -> bytes:
        try:
            return bytes(self._context.wrap(message, encrypted).message)
        except Exception as error:
            raise ConnectionAbortedError(f"the security context with {self.service} ended: {error}") from error

    def unwrap(self, token: bytes, *, encrypted: bool) -> bytes:
        try:
            found = self._context.unwrap(token)
        except Exception as error:
            raise Corruption(f"{self.service} sent a token that its security context rejects: {error}") from error
        if encrypted and not found.encrypted:
            raise Corruption(f"{self.service} sent an unencrypted message although encryption was negotiated")
        return bytes(found.message)

    def message_bytes_max(self, token_bytes: int, *, encrypted: bool) -> int:
        with self._kerberos.explained(self.service):
            return int(self._context.get_wrap_size_limit(token_bytes, encrypted))


def _minor_text(error: Any) -> str:
    """Return Kerberos' own message. It may name principals, files and realms, but contains no key."""
    try:
        return " ".join(error.get_all_statuses(error.min_code, False)).strip() or "no reason given"
    except Exception:
        return f"code {error.min_code}"


_TICKET_EXPIRED: Final = -1765328352
_KDC_UNREACHABLE: Final = -1765328228
_KDC_BUSY: Final = -1765328355

_NO_TICKET: Final = "{client} has no ticket in {source}: run kinit, or set the options keytab and principal"
_NO_KEY: Final = "{source} has no key of {client}: correct the option principal or keytab"
_WRONG_KEY: Final = "the key in {source} is no longer the one of {client}: export the keytab again"
_SKEW: Final = "the clocks of this machine, the KDC and the servers differ too much: synchronize them (NTP)"

_NO_TICKET_CODES: Final = (-1765328189, -1765328243, 39756044, 39756045)
"""FCC_NOFILE, CC_NOTFOUND, KG_CCACHE_NOMATCH, KG_EMPTY_CCACHE."""

_SENTENCES: Final = {
    **dict.fromkeys(_NO_TICKET_CODES, _NO_TICKET),
    _TICKET_EXPIRED: "the ticket of {client} in {source} has expired: run kinit, or set the option keytab",
    _KDC_UNREACHABLE: "no KDC answers: check krb5.conf and the network",
    _KDC_BUSY: "the KDC is temporarily unavailable",  # KDC_ERR_SVC_UNAVAILABLE
    -1765328230: "krb5.conf names no KDC for the realm of {client} or {service}",  # REALM_UNKNOWN
    -1765328164: "the KDC's name cannot be resolved: check krb5.conf and DNS",  # REALM_CANT_RESOLVE
    -1765328378: "the KDC does not know {client}: correct the option principal",  # C_PRINCIPAL_UNKNOWN
    -1765328377: "the KDC does not know {service}: correct the option hbasePrincipal or zookeeperPrincipal",  # S_…
    -1765328360: _WRONG_KEY,  # PREAUTH_FAILED
    -1765328353: _WRONG_KEY,  # BAD_INTEGRITY
    -1765328203: _NO_KEY,  # KT_NOTFOUND
    -1765328347: _SKEW,  # AP_ERR_SKEW
    -1765328351: _SKEW,  # TKT_NYV
    -1765328236: _SKEW,  # KDCREP_SKEW
}
"""An explanation for each code of krb5.h and gssapi_krb5.h."""

_MAY_PASS: Final = frozenset({_KDC_UNREACHABLE, _KDC_BUSY, -1765328164})
