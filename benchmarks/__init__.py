"""What the README's figures come from, beside peers at their best: `make bench`, `make bench-tso`, `make
bench-hbase`."""

import os
import sys
from pathlib import Path

sys.path.insert(0, os.fspath(Path(__file__).parents[1] / "tests" / "support"))  # Apache Omid's processes
