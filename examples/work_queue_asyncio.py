"""A work queue with asyncio: the tables of work_queue.py, and a watch that reports each result as it commits.

Unlike work_queue.py, it does not return the jobs of dead workers to the queue.

Run: python examples/work_queue_asyncio.py [FOLDER]
"""

import asyncio
import random
import sys
import tempfile
from dataclasses import dataclass, replace

import pyomid
import pyomid.aio

TABLES = ("ready", "taken", "done")


@dataclass
class Job:
    id: int
    text: str
    worker: str | None = None
    result: str | None = None


async def add(tx: pyomid.aio.AsyncTransaction, texts: list[str]) -> None:
    ready = await tx.table("ready", codec=Job)
    for id, text in enumerate(texts):
        await ready.put(Job(id, text))


async def take(tx: pyomid.aio.AsyncTransaction, worker: str) -> Job | None:
    ready = await tx.table("ready", codec=Job)
    jobs = [job async for job in ready.scan(limit=64)]
    if not jobs:
        return None
    job = replace(random.choice(jobs), worker=worker)
    await ready.delete(job.id)
    await (await tx.table("taken", codec=Job)).put(job)
    return job


async def finish(tx: pyomid.aio.AsyncTransaction, job: Job, result: str) -> None:
    await (await tx.table("taken", codec=Job)).delete(job.id)
    await (await tx.table("done", codec=Job)).put(replace(job, result=result))


async def work(db: pyomid.aio.AsyncDatabase, worker: str) -> None:
    while job := await db.run(take, worker):
        await asyncio.sleep(0)  # the work: here other tasks run, and no transaction is open
        await db.run(finish, job, job.text.upper())


async def results(watch: pyomid.aio.AsyncWatch[pyomid.TypedChange[Job]], count: int) -> list[Job]:
    """Return the first jobs that are done, in the order of their commits."""
    found: list[Job] = []
    async for change in watch:
        if change.after:
            found.append(change.after)
        if len(found) == count:
            break
    return found


async def main(folder: str, jobs: int = 100, workers: int = 4) -> list[Job]:
    async with pyomid.aio.connect(f"omid://{folder}") as db:
        for table in TABLES:
            await db.create_table(table, Job, row_key="id", if_not_exists=True)
        await db.run(add, [f"letter {number}" for number in range(jobs)])
        async with db.watch("done", codec=Job, poll_seconds=0.05) as watch, asyncio.TaskGroup() as tasks:
            watcher = tasks.create_task(results(watch, jobs))
            for number in range(workers):
                tasks.create_task(work(db, f"worker {number}"))
    print(len(watcher.result()), "jobs done")
    return watcher.result()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="queue-")))
