"""`python -m examples.flights [embedded|hbase] [--secured]`: `make demo`, `make demo-hbase` and `make demo-hbase
SECURED=1`.

This process and its children read their settings from the environment, which is set before `settings` is imported.
"""

import argparse
import os
import shutil
import sys


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.flights", description=__doc__)
    parser.add_argument("store", nargs="?", choices=("embedded", "hbase"), default="embedded")
    parser.add_argument("--secured", action="store_true", help="HBase, ZooKeeper and TSOs with Kerberos and TLS")
    given = parser.parse_args()
    if given.secured and given.store != "hbase":
        parser.error("--secured needs hbase: file permissions protect a folder")
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
