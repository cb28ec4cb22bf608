"""A work queue in one folder: threads take jobs, finish them, and return the jobs of dead workers.

Run: python examples/work_queue.py [FOLDER]
"""

import random
import sys
import tempfile
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyomid

TABLES = ("ready", "taken", "done")
LOOK_AHEAD = 64  # about eight jobs per worker: workers that choose at random seldom choose the same job


@dataclass
class Job:
    id: int
    text: str
    worker: str | None = None
    taken_at: datetime | None = None
    result: str | None = None


def add(tx: pyomid.Transaction, texts: list[str]) -> None:
    ready = tx.table("ready", codec=Job)
    for id, text in enumerate(texts):
        ready.put(Job(id, text))


def take(tx: pyomid.Transaction, worker: str) -> Job | None:
    """Move a ready job to the taken ones. If two workers choose one job, the second reruns with another choice."""
    ready = tx.table("ready", codec=Job)
    jobs = list(ready.scan(limit=LOOK_AHEAD))
    if not jobs:
        return None
    job = random.choice(jobs)
    job.worker, job.taken_at = worker, datetime.now(UTC)
    ready.delete(job.id)
    tx.table("taken", codec=Job).put(job)
    return job


def finish(tx: pyomid.Transaction, job: Job, result: str) -> bool:
    """Store the result. Return False if the job was returned to the queue meanwhile: another worker does it."""
    taken = tx.table("taken", codec=Job)
    if taken.get(job.id) != job:
        return False
    taken.delete(job.id)
    tx.table("done", codec=Job).put(Job(job.id, job.text, job.worker, job.taken_at, result))
    return True


def return_stale(tx: pyomid.Transaction, age: timedelta) -> int:
    """Make jobs ready again whose workers took them longer ago than `age`: those workers are dead, or too slow."""
    ready, taken = tx.table("ready", codec=Job), tx.table("taken", codec=Job)
    stale = [job for job in taken.scan() if job.taken_at and datetime.now(UTC) - job.taken_at > age]
    for job in stale:
        taken.delete(job.id)
        ready.put(Job(job.id, job.text))
    return len(stale)


def work(db: pyomid.Database, worker: str) -> None:
    """The transaction that takes a job commits before the work begins, so no transaction is open during the work."""
    while job := db.run(take, worker):
        db.run(finish, job, job.text.upper())


def main(folder: str, jobs: int = 100, workers: int = 4) -> list[Job]:
    with pyomid.connect(f"omid://{folder}") as db:
        for table in TABLES:
            db.create_table(table, Job, row_key="id", if_not_exists=True)
        db.run(add, [f"letter {number}" for number in range(jobs)])
        db.run(take, "a worker that dies")
        threads = [threading.Thread(target=work, args=(db, f"worker {number}")) for number in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(db.run(return_stale, timedelta(0)), "job returned")
        work(db, "worker 0")
        done = list(db.scan("done", codec=Job))
    print(len(done), "jobs done; the last:", done[-1].result)
    return done


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="queue-"))
