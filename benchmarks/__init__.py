"""What the README's figures come from, beside peers at their best: `make bench`, `make bench-tso`, `make
bench-hbase`."""

import os
import sys
from pathlib import Path

os.environ.setdefault("PYOMID_KERNELS", "first")  # what is measured is compiled code
sys.path.insert(0, os.fspath(Path(__file__).parents[1] / "tests" / "support"))  # Apache Omid's processes
