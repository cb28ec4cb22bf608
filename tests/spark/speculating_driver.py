"""A driver with speculation on a standalone cluster: writes a table whose slow task runs twice.

python speculating_driver.py MASTER URL FOLDER
"""

from __future__ import annotations

import functools
import sys

import failing_tasks
from pyspark import cloudpickle
from spark_sessions import local_session

import pyomid.spark


def main(master: str, url: str, folder: str) -> None:
    cloudpickle.register_pickle_by_value(failing_tasks)
    spark = local_session(
        master,
        **{
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.minTaskRuntime": "100ms",
            "spark.executor.memory": "512m",
            "spark.cores.max": "2",
            "spark.executor.cores": "1",
        },
    )
    numbers = spark.range(0, 3, numPartitions=3)
    task = functools.partial(failing_tasks.slow_first_attempt, folder, 500)
    frame = numbers.mapInArrow(task, "id long, attempt long")
    with pyomid.spark.connect(spark, url).transaction() as tx:
        print(tx.write(frame, "speculated", row_key=["id"]))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
