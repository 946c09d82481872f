"""What is kept is whole or not there: files that are cut, changed, emptied or swapped are named and made anew."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from experiments import files
from experiments.training import sources

ARRAY = np.arange(600, dtype=np.uint8).reshape(2, 300)


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :]


def emptied(content: bytes) -> bytes:
    return b""


def of_zeros(content: bytes) -> bytes:
    """What some file systems leave after a power cut."""
    return bytes(len(content))


DAMAGE = (cut, flipped, emptied, of_zeros)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DMLREPRO_CACHE", str(tmp_path))
    return tmp_path


def kept(key: object = "key") -> np.ndarray:
    return files.cached_array("arrays", key, lambda: ARRAY)


def only(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_an_array_is_built_once(cache):
    assert np.array_equal(kept(), ARRAY)
    assert np.array_equal(files.cached_array("arrays", "key", lambda: pytest.fail("built again")), ARRAY)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_array_is_named_set_aside_and_made_anew(cache, damage):
    kept()
    path = only(cache / "arrays")
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    with pytest.warns(UserWarning, match=rf"{path.name} is damaged .*now called {path.name}.damaged and made anew"):
        assert np.array_equal(kept(), ARRAY)
    assert path.with_name(f"{path.name}.damaged").read_bytes() == damage(whole)
    assert np.array_equal(files.cached_array("arrays", "key", lambda: pytest.fail("built again")), ARRAY)


@pytest.mark.filterwarnings("ignore:.*is damaged")
def test_every_flipped_byte_of_an_array_is_found_or_does_not_matter(cache):
    kept()
    path = only(cache / "arrays")
    whole = bytearray(path.read_bytes())
    for at in range(0, len(whole), 7):
        content = whole.copy()
        content[at] ^= 0xFF
        path.write_bytes(content)
        assert np.array_equal(kept(), ARRAY), f"byte {at}"


@pytest.mark.filterwarnings("ignore:.*is damaged")
@pytest.mark.parametrize("content", [lambda f: np.save(f, ARRAY[:1]), lambda f: np.savez(f, array=ARRAY[:1], key="x")])
def test_another_array_under_the_same_name_is_not_taken(cache, content):
    kept()
    with only(cache / "arrays").open("wb") as file:
        content(file)
    assert np.array_equal(kept(), ARRAY)


def test_an_array_under_anothers_name_is_not_taken(cache):
    kept("another")
    first = only(cache / "arrays")
    kept()
    (mine,) = set((cache / "arrays").iterdir()) - {first}
    mine.write_bytes(first.read_bytes())
    with pytest.warns(UserWarning, match="it belongs to another key"):
        kept()


def test_what_is_damaged_twice_is_kept_twice(tmp_path):
    for _ in range(3):
        (tmp_path / "a").write_text("x")
        with pytest.warns(UserWarning, match="a is damaged"):
            files.set_aside(tmp_path / "a", "for a test")
    assert sorted(os.listdir(tmp_path)) == ["a.damaged", "a.damaged2", "a.damaged3"]


# sealed folders


@pytest.fixture
def sealed(tmp_path):
    folder = tmp_path / "sealed"
    folder.mkdir()
    (folder / "a").write_text("first")
    (folder / "b").write_text("second")
    files.seal(folder)
    files.check_seal(folder)
    return folder


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["a", files.SUMS])
def test_a_damaged_file_of_a_sealed_folder_is_found(sealed, name, damage):
    (sealed / name).write_bytes(damage((sealed / name).read_bytes()))
    with pytest.raises(ValueError, match=r"not what SHA256SUMS lists|cannot be compared|lists nothing"):
        files.check_seal(sealed)


@pytest.mark.parametrize("remove", ["a", files.SUMS])
def test_a_missing_file_of_a_sealed_folder_is_found(sealed, remove):
    (sealed / remove).unlink()
    with pytest.raises(ValueError, match=f"{remove}"):
        files.check_seal(sealed)


def test_a_file_too_many_is_found(sealed):
    (sealed / "c").touch()
    with pytest.raises(ValueError, match="c: not what"):
        files.check_seal(sealed)


def test_the_sums_are_those_of_coreutils(sealed):
    subprocess.run(["sha256sum", "--check", "--strict", files.SUMS], cwd=sealed, check=True, capture_output=True)


# leftovers


def test_a_failed_block_leaves_what_was_there(tmp_path):
    (tmp_path / "a").write_text("before")
    with pytest.raises(ZeroDivisionError), files.replacing(tmp_path / "a") as temporary:
        temporary.write_text("after")
        raise ZeroDivisionError
    assert only(tmp_path).read_text() == "before"


def test_the_first_of_two_equal_folders_stays(tmp_path):
    with files.replacing(tmp_path / "folder") as late:
        late.mkdir()
        (late / "made by").write_text("the second")
        with files.replacing(tmp_path / "folder") as early:
            early.mkdir()
            (early / "made by").write_text("the first")
    assert (tmp_path / "folder" / "made by").read_text() == "the first"
    assert only(tmp_path).name == "folder"


def test_content_is_on_the_disk_before_its_name(tmp_path, monkeypatch):
    done, replace, fsync = [], os.replace, os.fsync
    monkeypatch.setattr(os, "replace", lambda *paths: (done.append("rename"), replace(*paths)))
    monkeypatch.setattr(
        os, "fsync", lambda handle: (done.append(os.readlink(f"/proc/self/fd/{handle}")), fsync(handle))
    )
    with files.replacing(tmp_path / "folder") as made:
        made.mkdir()
        (made / "a").write_text("x")
    assert done == [str(made / "a"), str(made), "rename", str(tmp_path)]


WRITER = """
import sys, time
from pathlib import Path
from experiments.files import replacing
with replacing(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    print("written", flush=True)
    time.sleep(600)
"""


def test_leftovers_of_killed_processes_are_swept_and_those_of_living_ones_are_not(tmp_path):
    root = str(Path(files.__file__).parents[1])
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, tmp_path / name],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": root},
        )
        for name in ("killed", "living")
    ]
    try:
        for writer in writers:
            assert writer.stdout.readline() == b"written\n"
        writers[0].send_signal(signal.SIGKILL)
        writers[0].wait()
        young = sorted(tmp_path.iterdir())
        with files.staging(tmp_path):
            assert set(young) < set(tmp_path.iterdir())  # one may be about to be locked
        long_ago = time.time() - 2 * files.YOUNG
        for path in young:
            os.utime(path, (long_ago, long_ago))
        with files.replacing(tmp_path / "new") as temporary:
            temporary.write_text("whole")
        names = [path.name for folder in tmp_path.glob(f"{files.STAGING}*") for path in folder.iterdir()]
        assert names == ["living"]
        assert (tmp_path / "new").read_text() == "whole"
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()


# Places


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The package as if in site-packages, a user's folder as the working directory, and their cache folder."""
    monkeypatch.setattr(files, "__file__", str(tmp_path / "site-packages" / "dmlrepro" / "files.py"))
    (tmp_path / "site-packages" / "dmlrepro").mkdir(parents=True)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.delenv("DMLREPRO_CACHE")
    monkeypatch.delenv("DMLREPRO_DATA", raising=False)
    return tmp_path


@pytest.mark.skipif(sys.platform != "linux", reason="XDG_CACHE_HOME moves the user's cache folder on Linux only")
def test_an_installed_package_keeps_things_in_the_users_cache_folder(installed):
    assert files.cache_root() == installed / "user" / "dmlrepro"
    assert files.data_root() == installed / "user" / "dmlrepro" / "data"


def test_a_chosen_folder_counts_from_the_working_directory_where_there_is_no_repository(installed, monkeypatch):
    monkeypatch.setenv("DMLREPRO_CACHE", "kept")
    assert files.cache_root() == installed / "work" / "kept"


def test_what_only_a_repository_has_is_refused_without_one(installed):
    assert files.find_repository() is None
    with pytest.raises(FileNotFoundError, match="change into a clone"):
        files.repository_root()


def test_an_installed_package_has_no_commit(installed):
    assert sources.checkout.__wrapped__() == {"git_commit": "", "git_dirty": False}


def test_a_machine_without_git_knows_no_commit(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert sources.checkout.__wrapped__() == {"git_commit": "", "git_dirty": False}


# arrays that are mapped into memory


def mapped(cache, key="key", rows=None):
    built = rows or (lambda: iter([ARRAY[:1], ARRAY[1:]]))
    return files.mapped_array(cache / "mapped", key, ARRAY.shape, ARRAY.dtype, built)


def never():
    pytest.fail("built again")
    yield


def test_a_mapped_array_is_built_once_from_its_parts_and_is_not_writable(cache):
    array = mapped(cache)
    assert isinstance(array, np.memmap) and np.array_equal(array, ARRAY) and not array.flags.writeable
    assert np.array_equal(mapped(cache, rows=never), ARRAY)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_mapped_array_is_set_aside_by_the_next_process(cache, damage):
    mapped(cache)
    (path,) = (cache / "mapped").glob("*/array.npy")
    path.write_bytes(damage(path.read_bytes()))
    files._check_once.cache_clear()
    with pytest.warns(UserWarning, match=rf"{path.parent.name} is damaged .*array.npy: not what.*made anew"):
        assert np.array_equal(mapped(cache), ARRAY)


def test_a_mapped_array_under_anothers_name_is_not_taken(cache):
    mapped(cache)
    (mine,) = (cache / "mapped").glob("*/array.npy")
    mapped(cache, "another", lambda: iter([1 - ARRAY]))
    (other,) = set((cache / "mapped").glob("*/array.npy")) - {mine}
    mine.parent.rename(cache / "gone")
    other.parent.rename(mine.parent)
    with pytest.warns(UserWarning, match="it belongs to another key"):
        assert np.array_equal(mapped(cache), ARRAY)


def test_what_fails_while_it_is_built_leaves_nothing(cache):
    def fails():
        yield ARRAY[:1]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mapped(cache, rows=fails)
    assert not list((cache / "mapped").glob("*/array.npy"))
