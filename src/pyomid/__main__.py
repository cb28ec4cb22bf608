"""`python -m pyomid` is the `pyomid` command."""

import sys

from pyomid.cli import main

if __name__ == "__main__":
    sys.exit(main())
