"""Machine code on disk is run only where it is what this process would compile."""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pyomid
from pyomid.kernels import cache as kernel_cache
from pyomid.kernels.cache import cache_folder, python_tag
from pyomid.kernels.digests import digest_of
from pyomid.oracle.native.decide import decide_chunk
from pyomid.row_codec.native.row_keys import key_order, put_blocks
from pyomid.server import startup

KEPT = f"decide.decide_chunk-{decide_chunk.digest}-{decide_chunk.plain.__code__.co_firstlineno}"

CALLER = """
from pyomid.kernels.compiled import kernel
from updated.helper import OFFSET, doubled, load
import numpy as np

@kernel("int64(int64[::1])")
def value(words):
    return doubled(load(words, 0)) + OFFSET

def say():
    is_kept = value.is_kept
    result = value(np.array([20], dtype=np.int64))
    print(result, "loaded" if sum(value.compiled().stats.cache_hits.values()) else "compiled", is_kept)
"""

HELPER = """
from pyomid.kernels.compiled import Instruction, kernel

OFFSET = 2

@kernel("int64(int64)")
def doubled(value):
    return value * 2

def bits(builder, word):
    return word

def make():
    from numba import types
    from numba.extending import intrinsic

    def load(typing_context, words, index):
        def generate(context, builder, signature, arguments):
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            return bits(builder, builder.load(builder.gep(array.data, [arguments[1]])))
        return types.int64(words, types.int64), generate
    return intrinsic(load)

load = Instruction(lambda words, index: words[index], make)
"""


def run(folder: Path, *command: str, seed: str = "1", **environment: str) -> list[str]:
    """What the caller's kernel says, in a process of its own: its result, whether its code was loaded or compiled, and
    whether it was known before to be there."""
    settings = {**os.environ, "PYTHONPATH": os.fspath(folder), "PYTHONHASHSEED": seed, **environment}
    settings = {name: value for name, value in settings.items() if value}
    done = subprocess.run(
        [*command, sys.executable, "-c", "from updated.caller import say; say()"],
        env=settings, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def installed(folder: Path) -> Path:
    package = folder / "updated"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "caller.py").write_text(CALLER)
    (package / "helper.py").write_text(HELPER)
    return package


@pytest.mark.process
def test_an_update_of_what_a_kernel_calls_is_what_runs(tmp_path: Path) -> None:
    """Else rows are read by the rules of the version before: the code of a helper lies in its caller's."""
    helper = installed(tmp_path) / "helper.py"
    assert run(tmp_path, NUMBA_CACHE_DIR="") == ["42", "compiled", "False"]
    helper.write_text(helper.read_text().replace("value * 2", "value * 200"))
    assert run(tmp_path, NUMBA_CACHE_DIR="") == ["4002", "compiled", "False"]
    assert run(tmp_path, seed="2", NUMBA_CACHE_DIR="") == ["4002", "loaded", "True"]


@pytest.mark.fast
@pytest.mark.parametrize("update", [("value * 2", "value * 3"), ("OFFSET = 2", "OFFSET = 3"), ("word\n", "-word\n")])
def test_each_part_of_a_kernels_code_changes_its_name(
    update: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that it calls, a constant that it names, a function that an instruction is made by."""
    digests = []
    for number, (old, new) in enumerate([("", ""), ("", ""), update]):
        folder = tmp_path / str(number)
        folder.mkdir()
        helper = installed(folder) / "helper.py"
        helper.write_text(helper.read_text().replace(old, new) if old else HELPER)
        monkeypatch.syspath_prepend(folder)
        digests.append(importlib.import_module("updated.caller").value.digest)
        for name in [name for name in sys.modules if name.partition(".")[0] == "updated"]:
            del sys.modules[name]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.process
def test_kernels_run_where_nothing_can_be_kept(tmp_path: Path) -> None:
    """A file instead of a folder: as good as one that cannot be written, for root too."""
    package = installed(tmp_path)
    (package / "__pycache__").touch()
    users = tmp_path / "users"
    assert run(tmp_path, NUMBA_CACHE_DIR="", XDG_CACHE_HOME=os.fspath(users)) == ["42", "compiled", "False"]
    assert run(tmp_path, NUMBA_CACHE_DIR="", XDG_CACHE_HOME=os.fspath(users)) == ["42", "loaded", "True"]
    nowhere = os.fspath(package / "__pycache__")
    assert run(tmp_path, NUMBA_CACHE_DIR=nowhere, XDG_CACHE_HOME=nowhere) == ["42", "compiled", "False"]


@pytest.mark.process
def test_what_an_image_keeps_is_loaded_though_read_only(tmp_path: Path) -> None:
    """Neither the installation nor a home can be written, and the source has another time than when it was compiled."""
    package = installed(tmp_path)
    kept = {"PYOMID_CACHE": os.fspath(tmp_path / "kept"), "NUMBA_CACHE_DIR": ""}
    assert run(tmp_path, **kept) == ["42", "compiled", "False"]
    os.utime(package / "caller.py", (1, 1))
    (package / "__pycache__").touch()
    folders = [tmp_path, package, *(path for path in (tmp_path / "kept").rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        as_user = ("setpriv", "--bounding-set=-dac_override") if os.geteuid() == 0 else ()
        nowhere = {"HOME": os.fspath(tmp_path / "none"), "XDG_CACHE_HOME": ""}
        assert run(tmp_path, *as_user, **kept, **nowhere) == ["42", "loaded", "True"]
        assert run(tmp_path, *as_user, **nowhere, NUMBA_CACHE_DIR="") == ["42", "compiled", "False"]
    finally:
        for folder in folders:
            folder.chmod(0o755)


BESIDE = """
import os, sys
from pathlib import Path
from pyomid.cells import batch_of
from pyomid.kernels import loading as kernel_loading
from pyomid.protocol import visibility
from pyomid.protocol.native.visibility import visible_cells
from pyomid.types import Cell

ROWS = 2000  # more than those that load nothing, fewer than those for which a kernel is loaded at once
batch = batch_of([[Cell(b"%04d" % row, b"f", b"q", 50, b"v", 60)] for row in range(ROWS)])

def seen():
    return visibility.visible_cells(batch, 100).cells.tolist() == list(range(ROWS))

print(seen(), visible_cells.is_loaded)
child = os.fork()
if child == 0:
    os._exit(0 if seen() and seen() else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
if thread := kernel_loading._beside._thread:
    thread.join()
print(seen(), visible_cells.is_loaded)
"""


@pytest.mark.process
def test_plain_python_goes_on_while_kernels_are_loaded() -> None:
    """A first read does not wait for the compiler; nor does a fork in the middle of it take anything from the child."""
    settings = {**os.environ, "PYOMID_KERNELS": "auto"}
    done = subprocess.run(
        [sys.executable, "-c", BESIDE], env=settings, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.split("\n")[:3] == ["True False", "0", "True True"], done.stderr


@pytest.mark.process
def test_kernels_are_compiled_beside_and_once(tmp_path: Path) -> None:
    program = (
        "from pyomid.kernels import loading as kernel_loading\n"
        "from pyomid.storage.embedded.commit_log.index_kernels import find\n"
        "print(find.is_kept, find.is_ready)\n"
        "if thread := kernel_loading._beside._thread: thread.join()\n"
        "print(find.is_ready)"
    )
    shutil.copytree(Path(pyomid.__file__).parent, tmp_path / "pyomid", ignore=shutil.ignore_patterns("__pycache__"))
    settings = {**os.environ, "PYOMID_KERNELS": "auto", "PYTHONPATH": os.fspath(tmp_path)}
    here = tmp_path / "here"  # a program's folder: nothing of it is imported where kernels are compiled
    here.mkdir()
    (here / "llvmlite.py").write_text("raise SystemExit(3)")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    processes = [
        subprocess.Popen([sys.executable, "-P", "-c", program], env=settings, cwd=here, **pipes) for _ in range(2)
    ]
    said = [process.communicate(timeout=120) for process in processes]
    assert [out for out, _ in said] == [b"False False\nTrue\n"] * 2, said
    assert sum(b"compiles its kernels" in errors for _, errors in said) == 1


@pytest.mark.process
def test_a_warm_up_that_could_keep_nothing_is_refused_at_once(tmp_path: Path) -> None:
    """It compiled for a minute, said that all is compiled, and left nothing: an image's build went on."""
    shutil.copytree(Path(pyomid.__file__).parent, tmp_path / "pyomid", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in [path for path in (tmp_path / "pyomid").rglob("*") if path.is_dir()]:
        (folder / "__pycache__").touch()  # no folder can be there
    settings = {**os.environ, "PYTHONPATH": os.fspath(tmp_path), "XDG_CACHE_HOME": os.devnull, "PYOMID_CACHE": ""}
    command = [sys.executable, "-P", "-m", "pyomid", "warm-up"]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done
    assert "compiled" not in done.stdout
    assert "set PYOMID_CACHE to one that" in done.stderr


@pytest.mark.fast
def test_what_may_differ_in_another_process_is_no_part_of_a_kernel() -> None:
    """An object without a value would give each process a name of its own: compiled anew by each, for ever."""
    some = object()

    def names_it() -> object:
        return some

    with pytest.raises(TypeError, match="name a number, a tuple, an array"):
        digest_of(names_it)


@pytest.mark.fast
def test_kernels_are_found_where_numba_keeps_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in the shipped unit and container: else a TSO says that it compiles, and begins late."""
    from numba.core import caching, config

    source = Path(startup.__file__).parents[1] / "oracle" / "native" / "decide.py"
    monkeypatch.setattr(config, "CACHE_DIR", os.fspath(tmp_path))
    monkeypatch.setenv("NUMBA_CACHE_DIR", os.fspath(tmp_path))
    locator = caching.UserProvidedCacheLocator(startup.is_compiled, os.fspath(source))
    folder = Path(locator.get_cache_path())
    assert cache_folder(source) == folder
    for module in (kernel_cache, startup):  # not those of this installation
        monkeypatch.setattr(module, "cache_folders", lambda source: iter([folder]))
    assert not startup.is_compiled()
    folder.mkdir(parents=True)
    (folder / "decide.decide_chunk-0123-130.py39.nbi").touch()
    assert not startup.is_compiled(), "another Python's code is none for this one"
    (folder / f"decide.decide_chunk-0123-130.{python_tag()}.nbi").touch()
    assert startup.is_compiled()
    assert not decide_chunk.is_kept, "what has another digest is none of this version's"
    (folder / f"{KEPT}.{python_tag()}.nbi").touch()
    assert decide_chunk.is_kept


@pytest.mark.fast
def test_kernels_lie_where_there_is_room_for_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An installation that cannot be written, a folder for them that cannot: the next one, as numba does it."""
    package, users = tmp_path / "package", tmp_path / "users"
    package.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(users))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    assert cache_folder(package / "a.py") == package / "__pycache__"
    (package / "__pycache__").touch()  # as good as a folder that cannot be written, for root too
    hashed = hashlib.sha1(os.fspath(package).encode()).hexdigest()
    assert cache_folder(package / "a.py") == users / "numba" / f"package_{hashed}"
    monkeypatch.setenv("NUMBA_CACHE_DIR", os.fspath(tmp_path / "chosen"))
    assert cache_folder(package / "a.py") == tmp_path / "chosen" / f"package_{hashed}"
    (tmp_path / "chosen").touch()
    assert cache_folder(package / "a.py") == users / "numba" / f"package_{hashed}"
    users.touch()
    assert cache_folder(package / "a.py") is None


_ROWS = """
import sys
from pyomid.row_codec.native.row_keys import key_order, put_blocks

assert key_order.for_rows(600) is key_order.python, "the first rows"
assert not key_order.is_ready_for(400) and "numba" not in sys.modules, "not one more than a thousand"
assert key_order.for_rows(1) is key_order
assert put_blocks.for_rows(600) is put_blocks.python, "each kernel counts its own"
assert put_blocks.is_ready_for(5_000) and put_blocks.is_loaded, "many rows at once, kept on disk"
assert key_order.for_rows(1) is not key_order.python and key_order.is_ready_for(1), "numba is there"
"""


@pytest.mark.process
def test_the_first_rows_of_a_process_load_no_kernel() -> None:
    put_blocks.compiled()
    key_order.compiled()
    environment = {**os.environ, "PYOMID_KERNELS": "auto"}
    subprocess.run([sys.executable, "-c", _ROWS], check=True, timeout=120, env=environment)
