"""Rules of the commit log that nothing else notices when they are gone: each test here is red without its rule."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from embedded_images import image_after_kill, image_after_power_loss

from pyomid.storage.embedded import EmbeddedCommitTable
from pyomid.storage.embedded.commit_log import index
from pyomid.storage.embedded.commit_log import writer as commit_log
from pyomid.storage.embedded.commit_log.index import INDEX_FILE
from pyomid.types import NOT_FOUND, SEALED

pytestmark = pytest.mark.fast

COMMITS = Path("commits")


@pytest.mark.parametrize("image", [image_after_kill, image_after_power_loss])
def test_completion_is_logged_before_the_row_that_follows_it(
    tmp_path: Path, image: Callable[[Path, Path], Path]
) -> None:
    """A late seal of a completed start: the log gets both words at once, and the seal must be the last one.

    The other way about a crash brings the start back as "never heard of", while somebody was told that it is sealed.
    """
    writer = EmbeddedCommitTable(tmp_path / "db", writable=True)
    writer.put([(50, 60), (100, 110)])
    writer.delete([50, 100])
    assert writer.seal(50).placed
    assert writer.lookup([50, 100]) == [SEALED, NOT_FOUND]

    crashed = image(tmp_path / "db", tmp_path / "crashed")
    reader = EmbeddedCommitTable(crashed, writable=False)
    assert reader.lookup([50, 100]) == [SEALED, NOT_FOUND]
    reader.close()
    recovered = EmbeddedCommitTable(crashed, writable=True)
    assert recovered.lookup([50, 100]) == [SEALED, NOT_FOUND]
    assert recovered.put([(50, 300), (150, 300)]) == [50], "the seal still refuses"
    recovered.close()
    writer.close()


def test_index_of_an_earlier_boot_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a loss of power the log has every acknowledged row, and the index whatever pages the system had written:
    here those of an earlier moment, whole and well-formed, but for the boot that they name."""
    monkeypatch.setattr(index, "_boot", lambda: 1)
    folder = tmp_path / "db"
    writer = EmbeddedCommitTable(folder, writable=True)
    writer.put([(50, 60), (100, 110)])
    shutil.copy(folder / COMMITS / INDEX_FILE, tmp_path / "old pages")
    writer.seal(150)
    writer.delete([100])
    writer.put([(200, 210)])
    crashed = image_after_kill(folder, tmp_path / "crashed")
    shutil.copy(tmp_path / "old pages", crashed / COMMITS / INDEX_FILE)

    believed = EmbeddedCommitTable(crashed, writable=False)
    assert believed.lookup([50, 150, 200]) == [60, NOT_FOUND, NOT_FOUND], "the pages are old indeed"
    believed.close()

    monkeypatch.setattr(index, "_boot", lambda: 2)
    reader = EmbeddedCommitTable(crashed, writable=False)
    assert reader.lookup([50, 100, 150, 200]) == [60, NOT_FOUND, SEALED, 210]
    assert list(reader.entries()) == [(50, 60), (150, SEALED), (200, 210)]

    recovered = EmbeddedCommitTable(crashed, writable=True)
    assert recovered.lookup([50, 100, 150, 200]) == [60, NOT_FOUND, SEALED, 210]
    recovered.put([(250, 260)])
    assert reader.lookup([50, 100, 150, 200, 250]) == [60, NOT_FOUND, SEALED, 210, 260], "believed from now on"
    reader.close()
    recovered.close()
    writer.close()


def test_completion_goes_along_with_a_flush_in_the_background(tmp_path: Path) -> None:
    """As the TSO does it: completed without waiting, flushed without waiting, and a crash."""
    writer = EmbeddedCommitTable(tmp_path / "db", writable=True)
    writer.put([(50, 60), (100, 110)])
    assert not len(writer.delete_at_once(np.array([50], dtype=np.int64)))
    rows = np.array([(150, 160)], dtype=np.int64)
    if writer.flush_ended_fileno() is None or not writer.begin_flush(rows):  # not on this system
        assert writer.flush(rows)[0] == []
    else:
        while (ended := writer.end_flush()) is None:
            time.sleep(0.001)
        assert ended[0] == []
    recovered = EmbeddedCommitTable(image_after_power_loss(tmp_path / "db", tmp_path / "crashed"), writable=True)
    assert list(recovered.entries()) == [(100, 110), (150, 160)]
    recovered.close()
    writer.close()


def test_seals_need_no_sanitiser_to_be_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reader that meets an orphan seals it. What the writer does not remember it looks up, and refuses."""
    monkeypatch.setattr(commit_log, "SEALED_MAX", 10)
    writer = EmbeddedCommitTable(tmp_path / "db", writable=True)
    starts = list(range(50, 5050, 50))
    for start in starts:
        assert writer.seal(start).placed
        assert len(writer._writing()._sealed) <= 10
    assert writer.put([(start, 9000) for start in [*starts, 5050]]) == starts
    assert writer.lookup([50, 5000, 5050]) == [SEALED, SEALED, 9000]
    writer.close()
