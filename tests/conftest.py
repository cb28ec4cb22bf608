"""No test asserts a time, and no example of Hypothesis does: on a busy machine each may take long. Kernels are loaded
at their first use: tests are of compiled code, but those that say so."""

import contextlib
import os

os.environ.setdefault("PYOMID_KERNELS", "first")

with contextlib.suppress(ImportError):  # the smoke tests of other Pythons do without it
    from hypothesis import settings

    settings.register_profile("without deadlines", settings.default, deadline=None)
    settings.load_profile("without deadlines")
