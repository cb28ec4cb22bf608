"""The HBase that a benchmark runs on: one that is there already, or one of its own, ended with it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from pyomid.cli.hbase import HBaseServer
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.zookeeper import ZooKeeper


def started_hbase(stack: ExitStack, folder: Path) -> tuple[HBaseServer, Cluster]:
    """The server whose files are in `folder`/hbase, and a client; `stack` ends what this started."""
    server = HBaseServer(folder / "hbase", heap_mb=2048)
    if not server.is_running():
        server.start()
        stack.callback(server.stop, deadline_s=20.0)
    cluster = Cluster(ZooKeeper(server.quorum))
    stack.callback(cluster.close)
    return server, cluster
