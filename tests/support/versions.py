"""Other versions of HBase than the one that the suite runs over (`pyomid.cli.hbase.HBASE`)."""

from __future__ import annotations

from typing import Final

from pyomid.cli.hbase import Bundle

OTHERS: Final = {
    "2.4.18": Bundle("hbase-2.4", ("org.apache.hbase:hbase-server:2.4.18",)),
    "2.5.11": Bundle("hbase-2.5", ("org.apache.hbase:hbase-server:2.5.11-hadoop3",)),
    # Of 3.0.0-beta-1 the repository lacks a jar.
    "3.0.0-alpha-4": Bundle("hbase-3.0", ("org.apache.hbase:hbase-server:3.0.0-alpha-4",)),
}
