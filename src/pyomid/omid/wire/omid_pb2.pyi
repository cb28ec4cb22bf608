from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Request(_message.Message):
    __slots__ = ("timestamp_request", "commit_request", "handshake_request", "fence_request", "request_id", "commit_part", "lease_request", "seal_request", "horizon_request", "status_request", "open_starts", "reported_ids")
    TIMESTAMP_REQUEST_FIELD_NUMBER: _ClassVar[int]
    COMMIT_REQUEST_FIELD_NUMBER: _ClassVar[int]
    HANDSHAKE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    FENCE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    COMMIT_PART_FIELD_NUMBER: _ClassVar[int]
    LEASE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    SEAL_REQUEST_FIELD_NUMBER: _ClassVar[int]
    HORIZON_REQUEST_FIELD_NUMBER: _ClassVar[int]
    STATUS_REQUEST_FIELD_NUMBER: _ClassVar[int]
    OPEN_STARTS_FIELD_NUMBER: _ClassVar[int]
    REPORTED_IDS_FIELD_NUMBER: _ClassVar[int]
    timestamp_request: TimestampRequest
    commit_request: CommitRequest
    handshake_request: HandshakeRequest
    fence_request: FenceRequest
    request_id: int
    commit_part: CommitPart
    lease_request: LeaseRequest
    seal_request: SealRequest
    horizon_request: HorizonRequest
    status_request: StatusRequest
    open_starts: OpenStarts
    reported_ids: ReportedIds
    def __init__(self, timestamp_request: _Optional[_Union[TimestampRequest, _Mapping]] = ..., commit_request: _Optional[_Union[CommitRequest, _Mapping]] = ..., handshake_request: _Optional[_Union[HandshakeRequest, _Mapping]] = ..., fence_request: _Optional[_Union[FenceRequest, _Mapping]] = ..., request_id: _Optional[int] = ..., commit_part: _Optional[_Union[CommitPart, _Mapping]] = ..., lease_request: _Optional[_Union[LeaseRequest, _Mapping]] = ..., seal_request: _Optional[_Union[SealRequest, _Mapping]] = ..., horizon_request: _Optional[_Union[HorizonRequest, _Mapping]] = ..., status_request: _Optional[_Union[StatusRequest, _Mapping]] = ..., open_starts: _Optional[_Union[OpenStarts, _Mapping]] = ..., reported_ids: _Optional[_Union[ReportedIds, _Mapping]] = ...) -> None: ...

class TimestampRequest(_message.Message):
    __slots__ = ("not_before",)
    NOT_BEFORE_FIELD_NUMBER: _ClassVar[int]
    not_before: int
    def __init__(self, not_before: _Optional[int] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("start_timestamp", "is_retry", "cell_id", "table_id", "branch", "level", "reported_ids")
    START_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    IS_RETRY_FIELD_NUMBER: _ClassVar[int]
    CELL_ID_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    REPORTED_IDS_FIELD_NUMBER: _ClassVar[int]
    start_timestamp: int
    is_retry: bool
    cell_id: _containers.RepeatedScalarFieldContainer[int]
    table_id: _containers.RepeatedScalarFieldContainer[int]
    branch: _containers.RepeatedScalarFieldContainer[int]
    level: int
    reported_ids: int
    def __init__(self, start_timestamp: _Optional[int] = ..., is_retry: _Optional[bool] = ..., cell_id: _Optional[_Iterable[int]] = ..., table_id: _Optional[_Iterable[int]] = ..., branch: _Optional[_Iterable[int]] = ..., level: _Optional[int] = ..., reported_ids: _Optional[int] = ...) -> None: ...

class ReportedIds(_message.Message):
    __slots__ = ("start_timestamp", "branch", "part", "ids", "table_id")
    START_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    start_timestamp: int
    branch: int
    part: int
    ids: bytes
    table_id: int
    def __init__(self, start_timestamp: _Optional[int] = ..., branch: _Optional[int] = ..., part: _Optional[int] = ..., ids: _Optional[bytes] = ..., table_id: _Optional[int] = ...) -> None: ...

class CommitPart(_message.Message):
    __slots__ = ("start_timestamp", "cell_id", "branch")
    START_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    CELL_ID_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    start_timestamp: int
    cell_id: _containers.RepeatedScalarFieldContainer[int]
    branch: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, start_timestamp: _Optional[int] = ..., cell_id: _Optional[_Iterable[int]] = ..., branch: _Optional[_Iterable[int]] = ...) -> None: ...

class HandshakeRequest(_message.Message):
    __slots__ = ("client_capabilities",)
    CLIENT_CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    client_capabilities: ClientCapabilities
    def __init__(self, client_capabilities: _Optional[_Union[ClientCapabilities, _Mapping]] = ...) -> None: ...

class ClientCapabilities(_message.Message):
    __slots__ = ("pyomid",)
    PYOMID_FIELD_NUMBER: _ClassVar[int]
    pyomid: PyomidClient
    def __init__(self, pyomid: _Optional[_Union[PyomidClient, _Mapping]] = ...) -> None: ...

class PyomidClient(_message.Message):
    __slots__ = ("version", "token", "commit_retry_s")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    COMMIT_RETRY_S_FIELD_NUMBER: _ClassVar[int]
    version: int
    token: bytes
    commit_retry_s: float
    def __init__(self, version: _Optional[int] = ..., token: _Optional[bytes] = ..., commit_retry_s: _Optional[float] = ...) -> None: ...

class FenceRequest(_message.Message):
    __slots__ = ("table_id",)
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    def __init__(self, table_id: _Optional[int] = ...) -> None: ...

class LeaseRequest(_message.Message):
    __slots__ = ("action", "start_timestamp", "term_s", "holder", "shared")
    class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        GRANT: _ClassVar[LeaseRequest.Action]
        RENEW: _ClassVar[LeaseRequest.Action]
        END: _ClassVar[LeaseRequest.Action]
    GRANT: LeaseRequest.Action
    RENEW: LeaseRequest.Action
    END: LeaseRequest.Action
    ACTION_FIELD_NUMBER: _ClassVar[int]
    START_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    TERM_S_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    action: LeaseRequest.Action
    start_timestamp: int
    term_s: float
    holder: str
    shared: bool
    def __init__(self, action: _Optional[_Union[LeaseRequest.Action, str]] = ..., start_timestamp: _Optional[int] = ..., term_s: _Optional[float] = ..., holder: _Optional[str] = ..., shared: _Optional[bool] = ...) -> None: ...

class SealRequest(_message.Message):
    __slots__ = ("start_timestamp",)
    START_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    start_timestamp: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, start_timestamp: _Optional[_Iterable[int]] = ...) -> None: ...

class HorizonRequest(_message.Message):
    __slots__ = ("horizon",)
    HORIZON_FIELD_NUMBER: _ClassVar[int]
    horizon: int
    def __init__(self, horizon: _Optional[int] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OpenStarts(_message.Message):
    __slots__ = ("client", "connection", "oldest", "holder")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    client: bytes
    connection: int
    oldest: int
    holder: str
    def __init__(self, client: _Optional[bytes] = ..., connection: _Optional[int] = ..., oldest: _Optional[int] = ..., holder: _Optional[str] = ...) -> None: ...

class Response(_message.Message):
    __slots__ = ("timestamp_response", "commit_response", "handshake_response", "fence_response", "request_id", "error_response", "lease_response", "seal_response", "horizon_response", "status_response", "done_response")
    TIMESTAMP_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    HANDSHAKE_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    FENCE_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    LEASE_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    SEAL_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    HORIZON_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    STATUS_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    DONE_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    timestamp_response: TimestampResponse
    commit_response: CommitResponse
    handshake_response: HandshakeResponse
    fence_response: FenceResponse
    request_id: int
    error_response: ErrorResponse
    lease_response: LeaseResponse
    seal_response: SealResponse
    horizon_response: HorizonResponse
    status_response: StatusResponse
    done_response: DoneResponse
    def __init__(self, timestamp_response: _Optional[_Union[TimestampResponse, _Mapping]] = ..., commit_response: _Optional[_Union[CommitResponse, _Mapping]] = ..., handshake_response: _Optional[_Union[HandshakeResponse, _Mapping]] = ..., fence_response: _Optional[_Union[FenceResponse, _Mapping]] = ..., request_id: _Optional[int] = ..., error_response: _Optional[_Union[ErrorResponse, _Mapping]] = ..., lease_response: _Optional[_Union[LeaseResponse, _Mapping]] = ..., seal_response: _Optional[_Union[SealResponse, _Mapping]] = ..., horizon_response: _Optional[_Union[HorizonResponse, _Mapping]] = ..., status_response: _Optional[_Union[StatusResponse, _Mapping]] = ..., done_response: _Optional[_Union[DoneResponse, _Mapping]] = ...) -> None: ...

class TimestampResponse(_message.Message):
    __slots__ = ("start_timestamp", "epoch", "fenced_timestamp")
    START_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FENCED_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    start_timestamp: int
    epoch: int
    fenced_timestamp: int
    def __init__(self, start_timestamp: _Optional[int] = ..., epoch: _Optional[int] = ..., fenced_timestamp: _Optional[int] = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ("aborted", "start_timestamp", "commit_timestamp", "reason", "conflict_timestamp")
    ABORTED_FIELD_NUMBER: _ClassVar[int]
    START_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CONFLICT_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    aborted: bool
    start_timestamp: int
    commit_timestamp: int
    reason: str
    conflict_timestamp: int
    def __init__(self, aborted: _Optional[bool] = ..., start_timestamp: _Optional[int] = ..., commit_timestamp: _Optional[int] = ..., reason: _Optional[str] = ..., conflict_timestamp: _Optional[int] = ...) -> None: ...

class HandshakeResponse(_message.Message):
    __slots__ = ("client_compatible", "server_capabilities", "low_latency")
    CLIENT_COMPATIBLE_FIELD_NUMBER: _ClassVar[int]
    SERVER_CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    LOW_LATENCY_FIELD_NUMBER: _ClassVar[int]
    client_compatible: bool
    server_capabilities: ServerCapabilities
    low_latency: bool
    def __init__(self, client_compatible: _Optional[bool] = ..., server_capabilities: _Optional[_Union[ServerCapabilities, _Mapping]] = ..., low_latency: _Optional[bool] = ...) -> None: ...

class ServerCapabilities(_message.Message):
    __slots__ = ("pyomid",)
    PYOMID_FIELD_NUMBER: _ClassVar[int]
    pyomid: PyomidServer
    def __init__(self, pyomid: _Optional[_Union[PyomidServer, _Mapping]] = ...) -> None: ...

class PyomidServer(_message.Message):
    __slots__ = ("version", "epoch", "frame_bytes_max", "database_id", "write_set_ids_max", "max_transaction_age_s")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    DATABASE_ID_FIELD_NUMBER: _ClassVar[int]
    WRITE_SET_IDS_MAX_FIELD_NUMBER: _ClassVar[int]
    MAX_TRANSACTION_AGE_S_FIELD_NUMBER: _ClassVar[int]
    version: int
    epoch: int
    frame_bytes_max: int
    database_id: bytes
    write_set_ids_max: int
    max_transaction_age_s: float
    def __init__(self, version: _Optional[int] = ..., epoch: _Optional[int] = ..., frame_bytes_max: _Optional[int] = ..., database_id: _Optional[bytes] = ..., write_set_ids_max: _Optional[int] = ..., max_transaction_age_s: _Optional[float] = ...) -> None: ...

class FenceResponse(_message.Message):
    __slots__ = ("table_id", "fence_id")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    FENCE_ID_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    fence_id: int
    def __init__(self, table_id: _Optional[int] = ..., fence_id: _Optional[int] = ...) -> None: ...

class ErrorResponse(_message.Message):
    __slots__ = ("code", "message", "values_json")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    VALUES_JSON_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    values_json: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., values_json: _Optional[str] = ...) -> None: ...

class LeaseResponse(_message.Message):
    __slots__ = ("start_timestamp", "term_s")
    START_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    TERM_S_FIELD_NUMBER: _ClassVar[int]
    start_timestamp: int
    term_s: float
    def __init__(self, start_timestamp: _Optional[int] = ..., term_s: _Optional[float] = ...) -> None: ...

class SealResponse(_message.Message):
    __slots__ = ("outcome",)
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    outcome: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, outcome: _Optional[_Iterable[int]] = ...) -> None: ...

class HorizonResponse(_message.Message):
    __slots__ = ("deleted",)
    DELETED_FIELD_NUMBER: _ClassVar[int]
    deleted: int
    def __init__(self, deleted: _Optional[int] = ...) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("epoch", "last_timestamp", "low_watermark", "watermark", "horizon", "lease", "pending", "in_flight", "counter", "held_back_by")
    class CounterEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAST_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    LOW_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    HORIZON_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    HELD_BACK_BY_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    last_timestamp: int
    low_watermark: int
    watermark: int
    horizon: int
    lease: _containers.RepeatedScalarFieldContainer[int]
    pending: _containers.RepeatedScalarFieldContainer[int]
    in_flight: int
    counter: _containers.ScalarMap[str, int]
    held_back_by: str
    def __init__(self, epoch: _Optional[int] = ..., last_timestamp: _Optional[int] = ..., low_watermark: _Optional[int] = ..., watermark: _Optional[int] = ..., horizon: _Optional[int] = ..., lease: _Optional[_Iterable[int]] = ..., pending: _Optional[_Iterable[int]] = ..., in_flight: _Optional[int] = ..., counter: _Optional[_Mapping[str, int]] = ..., held_back_by: _Optional[str] = ...) -> None: ...

class DoneResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
