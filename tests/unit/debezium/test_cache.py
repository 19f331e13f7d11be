"""The cache: complete or absent, whoever is interrupted and whoever comes at once."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from debezium import cache as cache_module
from debezium.cache import Cache
from debezium.errors import CacheError
from debezium.reporting import Reporter


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", Reporter(quiet=True))


def test_an_interrupted_fill_leaves_no_folder_and_is_cleared_by_the_next(cache: Cache) -> None:
    def interrupted(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.complete("thing", interrupted)
    assert not (cache.root / "thing").exists()
    folder = cache.complete("thing", lambda scratch: (scratch / "whole").touch())
    assert [path.name for path in folder.iterdir()] == ["whole"]
    assert not list(cache.root.glob("scratch-*"))


def test_two_at_once_fill_it_once(cache: Cache) -> None:
    filled = []

    def fill(folder: Path) -> None:
        time.sleep(0.1)
        filled.append(folder)

    threads = [threading.Thread(target=cache.complete, args=("thing", fill)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(filled) == 1


def test_another_user_may_enter_what_is_made(cache: Cache) -> None:
    folder = cache.complete("thing", lambda scratch: None)
    assert folder.stat().st_mode & 0o005 == 0o005


def test_a_file_with_another_hash_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "some.jar"
    file.write_bytes(b"not the jar")
    with pytest.raises(CacheError, match=r"some\.jar has SHA-256"):
        cache_module._verify(file, "0" * 64)


def test_a_cache_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(CacheError, match="ROWCALL_CACHE"):
        Cache(blocked, Reporter(quiet=True)).complete("thing", lambda scratch: None)
