"""python -m examples.cdc"""

import argparse
import sys

from examples.cdc.demo import Asked, main

parser = argparse.ArgumentParser(prog="examples.cdc", description="Change data of four tables, landed as one cut.")
parser.add_argument("--seconds", type=float, default=120.0, help="how long the shop is open")
parser.add_argument("--rate", type=int, default=3_000, help="change events a second")
parser.add_argument("--kills", type=int, default=3, help="kills of the stream's driver, and as many of its workers")
parser.add_argument(
    "--delta", action="store_true", help="land the same events in Delta tables too (fetches Delta Lake)"
)
parser.add_argument("--seed", type=int, default=1)
sys.exit(main(Asked(**vars(parser.parse_args()))))
