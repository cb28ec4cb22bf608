"""The first use of numpy may be interrupted, and another thread may fork during it."""

from __future__ import annotations

import subprocess
import sys

FIND: str = """
import os, signal, sys, threading
from pyomid import arrays

class Finder:
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            sys.meta_path.remove(self)
            meanwhile()

sys.meta_path.insert(0, Finder())
"""
INTERRUPTED: str = """
meanwhile = lambda: signal.raise_signal(signal.SIGINT)
try:
    arrays.np.zeros(1)
    print("not interrupted")
except KeyboardInterrupt:
    print(arrays.np.zeros(1))
"""
FORKED: str = """
importing, forking = threading.Event(), threading.Event()

def meanwhile():
    importing.set()
    forking.wait()

os.register_at_fork(before=forking.set)
threading.Thread(target=lambda: arrays.np.zeros(1)).start()
importing.wait()
if child := os.fork():
    print(arrays.np.zeros(1), os.waitpid(child, 0)[1])
else:
    os._exit(int(arrays.np.zeros(1)[0]))
"""


def run(program: str, module: str) -> str:
    command = [sys.executable, "-c", FIND + program, module]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def test_an_interrupted_import_of_numpy_is_completed() -> None:
    assert run(INTERRUPTED, "numpy.exceptions") == "[0.]"


def test_a_child_of_fork_can_use_numpy_that_its_parent_was_importing() -> None:
    assert run(FORKED, "numpy.exceptions") == "[0.] 0"
