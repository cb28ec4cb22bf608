"""How a client reacts to a remote exception, and which error of `pyomid.errors` it raises if the operation gives up."""

from __future__ import annotations

from enum import Enum
from typing import Final

from pyomid.errors import Misuse, OmidError, Unavailable, UnknownTable
from pyomid.omid.hbase.rpc.hbase_pb2 import ExceptionResponse
from pyomid.tls import refusal


class Reaction(Enum):
    """What the client does with the request that failed."""

    LOCATE = "forget the region's location, look it up again, and resend"
    WAIT = "the server is busy or starting: retry later"
    REOPEN = "the scanner is gone: open another at its position"
    SHRINK = "the reply was too large: resend the requests that are still unanswered"
    FAIL = "retrying cannot help"


class RemoteFailure(Exception):
    """A server's exception, with its Java class name. It is internal to this package: callers get the result of
    `as_error`."""

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
        """Return the failure in the result of a Multi. Unlike a failed call, such a result has no flag `do_not_retry`:
        HBase sends only the class name. The flag is set here for HBase's subclasses of DoNotRetryIOException, and for
        classes of other programs, such as constraints and coprocessors: HBase's own client does not have those classes
        either, and so cannot ask them."""
        name = _text(class_name)
        failure = cls(name, _first_line(_text(stack_trace), name))
        failure.do_not_retry = failure.simple_name in _DO_NOT_RETRY or not name.startswith(_OF_SERVERS)
        return failure

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
        """Return the error for a caller. Its message names the remote class and the attempted operation."""
        kind, advice = _KINDS.get(self.simple_name) or (Misuse if self.reaction is Reaction.FAIL else Unavailable, "")
        advice = next((text for sign, text in _ADVICE.items() if sign in self.message), advice)
        text = f"{what}: {self}" + (f"; {advice}" if advice else "")
        return kind(text, remote_class=self.class_name)


def is_denied(error: OmidError) -> bool:
    """Return whether HBase's access control refused the operation."""
    return str(error.values.get("remote_class", "")).endswith(".AccessDeniedException")


class ConnectionLost(Exception):
    """The connection ended or was never opened. Calls in flight may or may not have taken effect."""

    def again(self) -> ConnectionLost:
        """Return a copy for another caller, because two threads must not raise the same object."""
        return type(self)(*self.args)


class AuthenticationFailed(ConnectionLost):
    """Authentication or TLS failed, and a retry cannot help. The caller's error contains this error's text."""


def connection_lost(text: str, address: object, error: BaseException, *, may_need_tls: bool = False) -> ConnectionLost:
    """Return the failure for an error of the socket to `address`. `may_need_tls`: the connection has no TLS, and the
    server has never replied on it."""
    reason = refusal(error, f"the HBase server {address}", "hbaseTls")
    if reason is not None:
        return AuthenticationFailed(reason)
    hint = "; if the server accepts only TLS, set option hbaseTlsCa" if may_need_tls else ""
    return ConnectionLost(text + hint)


class CallTimedOut(Exception):
    """No reply arrived in time; the call may still take effect."""


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
"""The reaction to each class, by its name. For any other class it is FAIL if the server says not to retry, otherwise
WAIT."""

_DO_NOT_RETRY: Final = frozenset(
    (
        "ConcurrentTableModificationException",
        "ConstraintException",
        "CoprocessorException",
        "CorruptHFileException",
        "CorruptedSnapshotException",
        "ExportSnapshotException",
        "FailedSanityCheckException",
        "FatalConnectionException",
        "HBaseSnapshotException",
        "InvalidLabelException",
        "InvalidMutationDurabilityException",
        "LabelAlreadyExistsException",
        "LocalConnectionClosedException",
        "MergeRegionException",
        "NamespaceExistException",
        "NoServerForRegionException",
        "OperationTimeoutExceededException",
        "QuotaExceededException",
        "ReplicationPeerNotFoundException",
        "RequestTooBigException",
        "RestoreSnapshotException",
        "RowTooBigException",
        "SnapshotCreationException",
        "SnapshotDoesNotExistException",
        "SnapshotExistsException",
        "SnapshotTTLExpiredException",
        "SpaceLimitingException",
        "UnknownSnapshotException",
        "BadAuthException",
        "EmptyServiceNameException",
        "UnknownServiceException",
        "UnsupportedCellCodecException",
        "UnsupportedCompressionCodecException",
        "UnsupportedCryptoException",
        "WrongVersionException",
    )
)
"""Other subclasses of DoNotRetryIOException in HBase 2.4 to 3.0; tests/hbase compares them with the jars of HBase. The
exceptions of a busy server (ServerTooBusyException, ThrottlingException) are left out, because waiting helps."""

_OF_SERVERS: Final = ("org.apache.", "java.", "javax.", "com.google.")
"""The packages of HBase and its libraries."""

_UNSERVED: Final = "no server serves the region: if the master does not assign it, assign it in HBase's shell"

_KINDS: Final[dict[str, tuple[type[OmidError], str]]] = {
    "TableNotFoundException": (UnknownTable, "create it, or correct its name"),
    "NamespaceNotFoundException": (Misuse, "create the namespace: in HBase's shell, create_namespace 'NAME'"),
    "NoSuchColumnFamilyException": (Misuse, "the table has no such family"),
    "AccessDeniedException": (Misuse, "permission denied: grant the user this right"),
    "SpaceLimitingException": (Misuse, "a space quota is used up: delete data and compact, or raise the quota"),
    "TableNotEnabledException": (Unavailable, "the table is disabled: enable it"),
    "NotServingRegionException": (Unavailable, _UNSERVED),
    "RegionOffline": (Unavailable, _UNSERVED),
}


_ADVICE: Final = {
    "exceeds limit of": "a cell is over the server's limit (hbase.server.keyvalue.maxsize): store it in pieces",
    "Authentication is required": "HBase requires Kerberos: add the option authentication=kerberos",
    "service found for AuthenticationService": "HBase issues no delegation tokens: add "
    "org.apache.hadoop.hbase.security.token.TokenProvider to its hbase.coprocessor.region.classes",
}
"""Advice, by a part of the message, for classes that have many causes, such as DoNotRetryIOException."""


def _text(value: str | bytes) -> str:
    """Return the text. protobuf returns a proto2 string as bytes if it is not UTF-8."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _first_line(stack_trace: str, class_name: str) -> str:
    line = stack_trace.partition("\n")[0]
    return line.removeprefix(class_name).removeprefix(":").strip()
