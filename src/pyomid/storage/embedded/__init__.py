"""The embedded store: one LMDB environment in a folder, shared by any number of processes.

    LAYOUT      the layout version of the folder
    data/       the environment: cells, columns, tables and catalog, which every process writes in short transactions;
                commit table and leader state, which only the TSO writes

`layout` creates and checks the folder. `environment` manages LMDB: one environment per process, forks, growth, errors.
`records` defines the bytes; `native/records` is the compiled form.
"""

from pyomid.storage.embedded.catalog import EmbeddedCatalog
from pyomid.storage.embedded.commit_table import EmbeddedCommitTable
from pyomid.storage.embedded.layout import open_folder
from pyomid.storage.embedded.leader_state import EmbeddedLeaderState
from pyomid.storage.embedded.store import EmbeddedStore

__all__ = ["EmbeddedCatalog", "EmbeddedCommitTable", "EmbeddedLeaderState", "EmbeddedStore", "open_folder"]
