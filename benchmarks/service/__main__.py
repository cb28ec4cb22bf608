"""An hour in which a web service and a Spark job share a folder, under faults: `make soak-service`.

    callers ─ HTTP ─► examples/web under gunicorn ─┐
    batch job, Spark: reads all, writes statements ├─► one folder ─► checker: sums, size, cost of reads
    faults: kill −9 of worker, job; stops of worker ─┘

At the end every answered transfer is in the balances exactly once, `verify` finds nothing, and `picture.svg` shows the
folder's size and the cost of reads over the hour.

Options: --minutes (60), --rate (15), transfers a second, --out (build/service), --between (60), the job's pause in
seconds, --picture: draw that of a former run's notes once more.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pyomid
from benchmarks._report import machine_lines
from benchmarks.service.bank import OPENING, balances, name_of, open_bank
from benchmarks.service.callers import Callers
from benchmarks.service.faults import BatchJob, Faults
from benchmarks.service.picture import Notes, draw, summary

WEB = Path(__file__).parents[2] / "examples" / "web"
OPTIONS = "runIdDays=0.0035"
"""Five minutes: years of ids in an hour. All else is as a folder has it by itself."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=float, default=15)
    parser.add_argument("--between", type=float, default=60)
    parser.add_argument("--out", type=Path, default=Path("build/service"))
    parser.add_argument("--picture", action="store_true")
    options = parser.parse_args()
    out: Path = options.out.absolute()
    if not options.picture:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        wrong = run(out, options.minutes * 60, options.rate, options.between)
        (out / "wrong").write_text("".join(f"{line}\n" for line in wrong))
    notes = Notes.read(out / "notes.csv")
    (out / "picture.svg").write_text(draw(notes))
    wrong = [*(out / "wrong").read_text().splitlines(), *notes.wrong]
    print("\n".join([*machine_lines(), *summary(notes), *(f"WRONG: {line}" for line in wrong)]))
    return 1 if wrong else 0


def run(out: Path, seconds: float, rate: float, between_s: float) -> list[str]:
    """What was wrong at the end, in words; the rest is in the notes."""
    folder, notes = out / "db", out / "notes.csv"
    url = f"omid://{folder}?{OPTIONS}"
    with pyomid.connect(url) as db:
        open_bank(db)
    with ExitStack() as last_first:
        service, port = serve(url, out, last_first)
        checker = [sys.executable, "-m", "benchmarks.service.checker", url, str(folder), str(notes), "3"]
        started(checker, out / "checker.log", last_first)
        job = [sys.executable, "-m", "benchmarks.service.batch", url, str(notes), str(between_s)]
        batch = BatchJob(job, out / "batch.log")
        last_first.callback(batch.kill)
        callers = Callers(port, notes, rate, threads=8)
        faults = Faults(service.pid, batch, notes, (15.0, 45.0))
        callers.start()
        last_first.callback(callers.stop)
        faults.start()
        last_first.callback(faults.stop)
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            batch.keep()
            time.sleep(min(1.0, left))
        faults.stop()
        callers.stop()
        batch.kill()
        return [*callers.wrong, *audited(url, callers, batch)]


def serve(url: str, out: Path, last_first: ExitStack) -> tuple[subprocess.Popen[bytes], int]:
    command = [str(Path(sys.executable).parent / "gunicorn"), "--config", "gunicorn.conf.py", "service:app"]
    environment = {**os.environ, "BANK_URL": url, "BANK_BIND": "127.0.0.1:0"}
    service = started(command, out / "service.log", last_first, cwd=WEB, environment=environment)
    while (found := re.search(r"http://127\.0\.0\.1:([1-9]\d*)", (out / "service.log").read_text())) is None:
        if service.poll() is not None:
            raise SystemExit((out / "service.log").read_text())
        time.sleep(0.1)
    return service, int(found[1])


def started(
    command: list[str],
    log: Path,
    last_first: ExitStack,
    *,
    cwd: Path | None = None,
    environment: dict[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=cwd, env=environment, stdout=out, stderr=out)
    last_first.callback(process.wait)
    last_first.callback(process.terminate)
    return process


def audited(url: str, callers: Callers, batch: BatchJob) -> list[str]:
    """The callers' books beside the bank's, account by account, and the folder by itself."""
    wrong = []
    with pyomid.connect(url) as db:
        found = balances(db, "accounts")
        for number in range(len(found)):
            name = name_of(number)
            if found[name] != OPENING + callers.changes[name]:
                wrong.append(f"{name} holds {found[name]} in place of {OPENING + callers.changes[name]}")
        wrong += [repr(violation) for violation in db.verify().violations]
    if batch.ended_by_itself:
        wrong.append(f"the batch job ended by itself {batch.ended_by_itself} times")
    print(f"{callers.answered} transfers answered, {callers.repeated} of them after a repetition")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
