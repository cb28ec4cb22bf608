"""A database in a folder: one LMDB environment that any number of processes share (folder.md).

    LAYOUT      the layout version of the folder
    data/       the environment; `shared`, the file through which processes perform each other's commits

`layout` creates and checks the folder. `environment` manages LMDB: one environment per process, forks, growth, errors.
`records` defines the bytes; `native/records` is the compiled form. `session` begins transactions, and `decision`
decides commits.
"""

from pyomid.folder.branch_table import BranchTable, FolderState
from pyomid.folder.catalog import EmbeddedCatalog
from pyomid.folder.layout import open_folder
from pyomid.folder.session import FolderOptions, FolderSession
from pyomid.folder.store import EmbeddedStore

__all__ = [
    "BranchTable",
    "EmbeddedCatalog",
    "EmbeddedStore",
    "FolderOptions",
    "FolderSession",
    "FolderState",
    "open_folder",
]
