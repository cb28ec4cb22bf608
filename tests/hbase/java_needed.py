"""What a test that starts Java's servers asks first: without Java it is skipped on a person's machine, with the reason,
and fails where CI=true."""

from __future__ import annotations

import os

import pytest

from java_tools import OMID, missing
from pyomid.cli.hbase import HBASE, JavaMissing, class_path
from pyomid.errors import Unavailable


def needs_java() -> None:
    """Skips, or under CI fails, where no JDK, Maven or jar is to be had."""
    reason = missing()
    if reason is None:
        try:
            class_path(HBASE)
            class_path(OMID)
            return
        except (JavaMissing, Unavailable) as error:
            reason = error.message
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must run the tests of a real HBase: {reason}")
    pytest.skip(f"not run: the tests of a real HBase need Java: {reason}")
