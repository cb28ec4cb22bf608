"""How to react to a remote exception, and which error of `pyomid.errors` it becomes if the operation gives up."""

from __future__ import annotations

from enum import Enum
from typing import Final

from pyomid.errors import Misuse, OmidError, Unavailable, UnknownTable
from pyomid.storage.hbase.rpc.hbase_pb2 import ExceptionResponse
from pyomid.tls import refusal


class Reaction(Enum):
    """What to do with the request that failed."""

    LOCATE = "forget where the region was, look again, and send it there"
    WAIT = "the server is busy or starting: the same request again, later"
    REOPEN = "the scanner is gone: open another where this one stood"
    SHRINK = "the reply was too large: the same request, for what is still missing"
    FAIL = "it will never work"


class RemoteFailure(Exception):
    """A server's exception, by its Java class name. Internal to this package: callers get the error that `as_error`
    makes."""

    def __init__(self, class_name: str, message: str, *, do_not_retry: bool = False) -> None:
        super().__init__(f"{class_name}: {message}" if message else class_name)
        self.class_name = class_name
        self.message = message
        self.do_not_retry = do_not_retry

    @classmethod
    def of(cls, response: ExceptionResponse) -> RemoteFailure:
        name = _text(response.exception_class_name)
        return cls(name, _first_line(_text(response.stack_trace), name), do_not_retry=response.do_not_retry)

    @classmethod
    def of_pair(cls, class_name: str, stack_trace: bytes) -> RemoteFailure:
        """From the results of a Multi, where only the name says whether to retry."""
        name = _text(class_name)
        return cls(name, _first_line(_text(stack_trace), name))

    @property
    def simple_name(self) -> str:
        return self.class_name.rpartition(".")[2].rpartition("$")[2]

    @property
    def reaction(self) -> Reaction:
        known = _REACTIONS.get(self.simple_name)
        if known is not None:
            return known
        return Reaction.FAIL if self.do_not_retry or "DoNotRetry" in self.class_name else Reaction.WAIT

    def as_error(self, what: str) -> OmidError:
        """The error for a caller; its message names the remote class and what was attempted."""
        kind, advice = _KINDS.get(self.simple_name, (None, ""))
        if kind is None:
            kind = Misuse if self.reaction is Reaction.FAIL else Unavailable
            advice = ""
        advice = next((text for sign, text in _ADVICE.items() if sign in self.message), advice)
        text = f"{what}: {self}" + (f"; {advice}" if advice else "")
        return kind(text, remote_class=self.class_name)


def is_denied(error: OmidError) -> bool:
    """Whether HBase's access control refused what was asked for."""
    return str(error.values.get("remote_class", "")).endswith(".AccessDeniedException")


class ConnectionLost(Exception):
    """The connection ended or was never made. Calls under way may or may not have taken effect."""

    def again(self) -> ConnectionLost:
        """The same for another caller: threads do not raise one object."""
        return type(self)(*self.args)


class AuthenticationFailed(ConnectionLost):
    """The server and this client cannot agree on who they are, or on TLS: no waiting mends it. Callers are told
    its text."""


def connection_lost(text: str, address: object, error: BaseException, *, is_unheard: bool = False) -> ConnectionLost:
    """What an error of the socket means; `address` is the server's. `is_unheard`: it is plain, and the server never
    answered on it."""
    reason = refusal(error, f"the HBase server {address}", "hbaseTls")
    if reason is not None:
        return AuthenticationFailed(reason)
    hint = "; a server that speaks TLS alone does so: see option hbaseTlsCa" if is_unheard else ""
    return ConnectionLost(text + hint)


class CallTimedOut(Exception):
    """No answer in time; the call may still take effect."""


_REACTIONS: Final = {
    **dict.fromkeys(
        (
            "NotServingRegionException",
            "RegionMovedException",
            "RegionOpeningException",
            "RegionInRecoveryException",
            "RegionServerStoppedException",
            "RegionServerAbortedException",
            "RegionServerRunningException",
            "ServerNotRunningYetException",
            "StoppedRpcClientException",
            "WrongRegionException",
            "UnknownRegionException",
            "ConnectionClosingException",
            "MasterStoppedException",
            "NotAllMetaRegionsOnlineException",
        ),
        Reaction.LOCATE,
    ),
    **dict.fromkeys(
        (
            "RegionTooBusyException",
            "CallQueueTooBigException",
            "CallDroppedException",
            "CallTimeoutException",
            "TimeoutIOException",
            "PleaseHoldException",
            "MasterNotRunningException",
            "PleaseRestartMasterException",
            "RpcThrottlingException",
            "WALClosedException",
            "DroppedSnapshotException",
        ),
        Reaction.WAIT,
    ),
    **dict.fromkeys(
        ("UnknownScannerException", "OutOfOrderScannerNextException", "ScannerResetException", "LeaseException"),
        Reaction.REOPEN,
    ),
    "MultiActionResultTooLarge": Reaction.SHRINK,
    **dict.fromkeys(
        (
            "TableNotFoundException",
            "TableExistsException",
            "TableNotEnabledException",
            "TableNotDisabledException",
            "NoSuchColumnFamilyException",
            "AccessDeniedException",
            "InvalidFamilyOperationException",
            "NamespaceNotFoundException",
            "UnknownProtocolException",
        ),
        Reaction.FAIL,
    ),
}

_UNSERVED: Final = "no server serves the region: if the master does not assign it, assign it in HBase's shell"

_KINDS: Final[dict[str, tuple[type[OmidError], str]]] = {
    "TableNotFoundException": (UnknownTable, "create it, or correct its name"),
    "NamespaceNotFoundException": (Misuse, "make the namespace: in HBase's shell, create_namespace 'NAME'"),
    "NoSuchColumnFamilyException": (Misuse, "the table has no such family"),
    "AccessDeniedException": (Misuse, "permission denied: grant the user that right there"),
    "TableNotEnabledException": (Unavailable, "the table is disabled: enable it"),
    "NotServingRegionException": (Unavailable, _UNSERVED),
    "RegionOffline": (Unavailable, _UNSERVED),
}


_ADVICE: Final = {
    "exceeds limit of": "a cell is over the server's limit (hbase.server.keyvalue.maxsize): store it in pieces",
    "Authentication is required": "HBase asks for Kerberos: add the option authentication=kerberos",
    "service found for AuthenticationService": "HBase gives no delegation tokens: add "
    "org.apache.hadoop.hbase.security.token.TokenProvider to its hbase.coprocessor.region.classes",
}
"""Advice by the message, where the class says too little (DoNotRetryIOException)."""


def _text(value: str | bytes) -> str:
    """protobuf gives a string of a proto2 message as bytes if it is not UTF-8."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _first_line(stack_trace: str, class_name: str) -> str:
    line = stack_trace.partition("\n")[0]
    return line.removeprefix(class_name).removeprefix(":").strip()
