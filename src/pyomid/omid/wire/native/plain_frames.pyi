from typing import Final

BEGIN_REPLY: Final = 1
COMMIT_REPLY: Final = 2

def commit_request(
    start_ts: int,
    is_retry: bool,
    cell_ids: tuple[int, ...],
    table_ids: tuple[int, ...],
    request_id: int,
) -> bytes: ...
def plain_answer(payload: bytes) -> tuple[int, int, int, int, int] | None: ...
