"""A web service over a folder: accounts, transfers that count once, pages. docs/web-service.md explains it.

BANK_URL=omid:///var/lib/bank/db uvicorn service:app
BANK_URL=omid:///var/lib/bank/db gunicorn --config gunicorn.conf.py service:app
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from fastapi import FastAPI, Header, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse

import pyomid
import pyomid.aio

URL = os.environ.get("BANK_URL", "omid:///var/lib/bank/db")
ANSWER_S = 10.0  # callers time out after this


@dataclass
class Account:
    name: str
    balance: int  # cents


@dataclass
class Transfer:
    source: str
    target: str
    cents: int


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Runs in each worker, after the fork: a child cannot use a database that its parent opened."""
    async with pyomid.aio.connect(URL) as db:
        await db.create_table("accounts", Account, row_key="name", if_not_exists=True)
        app.state.db = db
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/transfers")
async def transfer(
    wanted: Transfer, request: Request, idempotency_key: Annotated[str, Header(max_length=100)]
) -> dict[str, Any]:
    async def move(tx: pyomid.aio.AsyncTransaction) -> dict[str, Any]:
        accounts = await tx.table("accounts", codec=Account)
        found = await accounts.rows([wanted.source, wanted.target])
        source, target = found[wanted.source], found[wanted.target]
        if source is None or target is None:
            raise HTTPException(404, "no such account")
        if source is target or wanted.cents <= 0 or source.balance < wanted.cents:
            raise HTTPException(422, "not possible")
        await accounts.put(Account(source.name, source.balance - wanted.cents))
        await accounts.put(Account(target.name, target.balance + wanted.cents))
        return {**asdict(wanted), "left": source.balance - wanted.cents}

    async with asyncio.timeout(ANSWER_S):
        done = await request.app.state.db.run_once(f"transfer {idempotency_key}", move)
    answer: dict[str, Any] | None = done.result if isinstance(done, pyomid.AlreadyDone) else done
    if answer is None:  # after `runIdDays`
        raise HTTPException(410, "this transfer was done so long ago that its reply is no longer kept")
    if {key: answer[key] for key in asdict(wanted)} != asdict(wanted):
        raise HTTPException(422, "this Idempotency-Key was used for another transfer")
    return answer


@app.put("/accounts/{name}", status_code=201)
async def open_account(name: str, balance: int, request: Request) -> Account:
    async with request.app.state.db.begin() as tx:
        accounts = await tx.table("accounts", codec=Account)
        if not await accounts.put_if_absent(Account(name, balance)):
            raise HTTPException(409, "the account already exists")
    return Account(name, balance)


@app.get("/accounts/{name}")
async def account(name: str, request: Request) -> Account:
    async with request.app.state.db.snapshot() as tx:
        accounts = await tx.table("accounts", codec=Account)
        found: Account | None = await accounts.get(name)
    if found is None:
        raise HTTPException(404, "no such account")
    return found


@app.get("/accounts")
async def names(request: Request, limit: Annotated[int, Query(ge=1, le=1000)] = 100, after: str | None = None) -> Any:
    async with request.app.state.db.snapshot() as tx:
        page = await (await tx.table("accounts")).page(limit=limit, after=after)
    return {"names": [key.decode(errors="replace") for key, _ in page.rows], "next": page.next}


@app.get("/health")
async def health(request: Request) -> Response:
    async with asyncio.timeout(2), request.app.state.db.snapshot():
        return Response("well\n", media_type="text/plain")


@app.exception_handler(pyomid.ConflictError)
@app.exception_handler(pyomid.Unavailable)
@app.exception_handler(pyomid.StoreFull)
@app.exception_handler(pyomid.OutcomeUnknown)
@app.exception_handler(TimeoutError)
async def not_now(request: Request, error: Exception) -> Response:
    """Nothing was committed, or the outcome is unknown. Either way the same Idempotency-Key makes a retry safe."""
    code = getattr(error, "code", "TIME-OUT")
    return JSONResponse({"detail": f"try again: {code}"}, status_code=503, headers={"Retry-After": "1"})


@app.exception_handler(pyomid.Misuse)
async def not_so(request: Request, error: pyomid.Misuse) -> Response:
    return JSONResponse({"detail": str(error)}, status_code=422)
