"""Marks of tables that nobody registered, from a client's side (K6)."""

from __future__ import annotations

import time

import pytest

from pyomid.client.database import Database
from pyomid.protocol.hashing import table_id
from pyomid.protocol.sanitize import sanitize_steps

pytestmark = pytest.mark.fast

JAVA = table_id(b"java")


def test_a_drop_takes_the_mark_of_its_table_along(memory_db: Database) -> None:
    """Else nothing would be sanitised until somebody makes a table of that name again."""
    catalog = memory_db.deployment.catalog
    catalog.mark_unknown_table(JAVA)
    memory_db.create_table("java", ["f"])
    memory_db.driver.run(sanitize_steps(now_s=time.time(), retry_bound_s=0.0))
    memory_db.drop_table("java")
    assert catalog.unknown_tables() == {}
    memory_db.driver.run(sanitize_steps(now_s=time.time(), retry_bound_s=0.0))
