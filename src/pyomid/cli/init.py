"""`pyomid init URL`: makes what a database needs before its first client."""

from __future__ import annotations

import argparse

from pyomid.config import HBaseAddress, parse_url


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "init",
        help="make the tables of a database in HBase (once); other kinds need nothing",
        description="Idempotent. Tables that Apache Omid's own tool made are taken as they are. With another option "
        "ceiling than before it moves the timestamp ceiling there: stop every TSO first.",
    )
    parser.add_argument("url", help="omid+hbase://zk1:2181,zk2:2181/znode")
    parser.add_argument(
        "--commit-table-regions",
        type=int,
        default=16,
        help="regions of a new commit table (default: %(default)s, as Apache Omid's)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    address, settings = parse_url(arguments.url)
    if not isinstance(address, HBaseAddress):
        print("nothing to do: this kind of database is made by its first client")
        return 0
    from pyomid.storage.hbase.deployment import chosen_ceiling, create_database
    from pyomid.storage.hbase.rpc.client import Cluster
    from pyomid.storage.hbase.zookeeper import ZooKeeper

    cluster = Cluster(ZooKeeper(address.quorum, address.znode))
    try:
        made = create_database(cluster, commit_table_regions=arguments.commit_table_regions)
        chosen_ceiling(cluster, settings.ceiling).move_here()
    finally:
        cluster.close()
    print(f"made {', '.join(made)}" if made else "all tables were there")
    print(f"next: pyomid tso --listen HOST:24758 --store '{arguments.url}'")
    return 0
