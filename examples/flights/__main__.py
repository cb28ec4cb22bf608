"""`python -m examples.flights [embedded|hbase] [--secured]`: `make demo`, `make demo-hbase` and `make demo-hbase
SECURED=1`.

Settings are read from the environment, by this process and by its children: it is set before they are imported.
"""

import argparse
import os
import shutil
import sys


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.flights", description=__doc__)
    parser.add_argument("store", nargs="?", choices=("embedded", "hbase"), default="embedded")
    parser.add_argument("--secured", action="store_true", help="HBase, ZooKeeper and TSOs by Kerberos and TLS")
    given = parser.parse_args()
    if given.secured and given.store != "hbase":
        parser.error("--secured is for hbase: a folder is its owner's")
    os.environ["DEMO_STORE"] = store = given.store
    os.environ["DEMO_SECURED"] = str(int(given.secured))

    from examples.flights.settings import FOLDER

    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    if store == "embedded":
        from examples.flights import demo
        from examples.flights.places import Folder

        return demo.main(Folder())
    return on_hbase()


def on_hbase() -> int:
    from examples.flights import servers

    with servers.started() as place:
        from examples.flights import demo

        return demo.main(place)


sys.exit(main())
