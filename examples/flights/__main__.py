"""`python -m examples.flights`, which is `make demo`."""

import sys

from examples.flights.demo import main

sys.exit(main())
