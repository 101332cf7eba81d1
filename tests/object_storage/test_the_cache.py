"""The cache of blocks takes its share of the disk, and gives no file away that somebody was told of."""

from __future__ import annotations

import os
import tracemalloc
from types import SimpleNamespace

import pytest

from edl_allreduce import clock
from edl_allreduce.contract import CACHE_DIR, CACHE_GIB
from edl_allreduce.storage import blocks
from edl_allreduce.storage.url import Object

MIB = 1 << 20


class Storage:
    """One object of zeros."""

    def __init__(self, found: Object) -> None:
        self.found = found

    def read(self, url: object, start: int, stop: int) -> bytes:
        return bytes(stop - start)

    def look(self, url: object) -> Object:
        return self.found


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """An object of so many bytes, with a cache of 4 MiB."""

    def made(size: int) -> blocks.OpenObject:
        found = Object("s3", "box/name", size, "v1")
        monkeypatch.setattr(blocks, "store", lambda: Storage(found))
        return blocks.OpenObject(found)

    monkeypatch.setenv(CACHE_DIR, str(tmp_path))
    monkeypatch.setenv(CACHE_GIB, str(4 / 1024))
    blocks.cache.cache_clear()
    yield made
    blocks.cache.cache_clear()


def test_a_whole_file_that_fills_the_cache_is_there_when_its_reader_opens_it(opened):
    one = opened(4 * MIB - 10)
    one.pread(10, 0)  # with this block the cache is too full
    path = one.local_copy()
    assert path.stat().st_size == 4 * MIB - 10
    long_ago = clock.wall() - 3600
    os.utime(path, (long_ago, long_ago))
    (path.parent / "0").write_bytes(bytes(MIB))
    blocks.cache().sweep()
    assert not path.exists(), "one that nobody asked for lately goes"


def test_what_the_cache_holds_counts_as_room(tmp_path, monkeypatch):
    monkeypatch.delenv(CACHE_GIB, raising=False)
    monkeypatch.setattr(blocks.shutil, "disk_usage", lambda path: SimpleNamespace(free=2 * MIB))
    folder = tmp_path / "digest"
    folder.mkdir()
    (folder / "0").write_bytes(bytes(MIB))
    assert blocks._limit(tmp_path) == 3 * MIB // 2


def test_folders_without_blocks_go_and_the_place_of_diaries_stays(tmp_path):
    cache = blocks.BlockCache(tmp_path, MIB)
    for name in ("old", "new", blocks.AUDIT):
        (tmp_path / name).mkdir()
    for name in ("old", blocks.AUDIT):
        os.utime(tmp_path / name, (0, 0))
    cache.sweep()
    assert sorted(path.name for path in tmp_path.iterdir()) == [blocks.AUDIT, "new"]


def test_many_blocks_that_are_expected_are_not_in_memory_at_once(opened, monkeypatch):
    monkeypatch.setenv(CACHE_GIB, "1")
    blocks.cache.cache_clear()
    one = opened(128 * MIB)
    blocks.requests()
    tracemalloc.start()
    one.expect([n * MIB for n in range(0, 128, 2)], [n * MIB + 1 for n in range(0, 128, 2)])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < (2 * blocks.THREADS + 4) * MIB
