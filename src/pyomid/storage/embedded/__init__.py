"""The embedded store: LMDB environments in one folder, shared by any number of processes.

    LAYOUT      version of everything below
    data/       cells, columns, tables, catalog; written by every process in short transactions
    commits/    commit table and leader state; only the TSO writes them, all other processes map them read-only

`layout` makes and checks the folder. `environment` does all that concerns LMDB's lifetime: one environment a process,
forks, growth, errors. `records` defines the bytes; `native/records` is their compiled form.
"""

from pyomid.storage.embedded.catalog import EmbeddedCatalog
from pyomid.storage.embedded.commit_table import EmbeddedCommitTable
from pyomid.storage.embedded.layout import open_folder
from pyomid.storage.embedded.leader_state import EmbeddedLeaderState
from pyomid.storage.embedded.store import EmbeddedStore

__all__ = ["EmbeddedCatalog", "EmbeddedCommitTable", "EmbeddedLeaderState", "EmbeddedStore", "open_folder"]
