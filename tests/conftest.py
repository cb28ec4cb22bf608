"""No test asserts a time, and no example of Hypothesis does: on a busy machine each may take long."""

import contextlib

with contextlib.suppress(ImportError):  # the smoke tests of other Pythons do without it
    from hypothesis import settings

    settings.register_profile("without deadlines", settings.default, deadline=None)
    settings.load_profile("without deadlines")
