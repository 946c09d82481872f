"""What is kept is whole or not there: files that are cut, changed, emptied or swapped are named and made anew."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from experiments import files
from experiments.training import sources

ROOT = Path(files.__file__).parents[1]
ARRAY = np.arange(600, dtype=np.uint8).reshape(2, 300)


DAMAGE = {  # a file that is cut, has another bit, or is empty
    "cut": lambda content: content[: len(content) // 2],
    "flipped": lambda content: (
        (half := len(content) // 2) and content[:half] + bytes([content[half] ^ 4]) + content[half + 1 :]
    ),
    "emptied": lambda content: b"",
}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DMLREPRO_CACHE", str(tmp_path))
    return tmp_path


def mapped(build=lambda: iter([ARRAY[:1], ARRAY[1:]]), key: object = "key") -> np.ndarray:
    return files.mapped_array(files.cache_root() / "arrays", key, ARRAY.shape, ARRAY.dtype, build)


def only(folder: Path, pattern: str = "[!.]*") -> Path:
    (path,) = folder.glob(pattern)
    return path


def never():
    pytest.fail("built again")


def test_an_array_is_built_once(cache):
    assert np.array_equal(mapped(), ARRAY) and np.array_equal(mapped(never), ARRAY)
    assert only(cache / "arrays").is_dir() and not mapped().flags.writeable
    assert np.array_equal(mapped(lambda: [1 - ARRAY], "another key"), 1 - ARRAY)


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_array_is_refused_by_name_and_made_anew_where_it_is_removed(cache, damage):
    mapped()
    folder = only(cache / "arrays")
    whole = (folder / "array.npy").read_bytes()
    (folder / "array.npy").write_bytes(damage(whole))
    with pytest.raises(ValueError, match=rf"{folder.name} is damaged .array.npy: not what.*remove it"):
        mapped(never)
    shutil.rmtree(folder)
    assert np.array_equal(mapped(), ARRAY)


def test_of_two_processes_one_builds_and_the_other_waits(cache):
    script = """
import sys, time
import numpy as np
from experiments import files
def build():
    print("building", flush=True)
    time.sleep(1)
    yield np.zeros(3)
print(files.mapped_array(files.cache_root() / "arrays", "key", (3,), float, build).sum())
"""
    command, environment = [sys.executable, "-c", script], os.environ | {"PYTHONPATH": str(ROOT)}
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert sorted(process.communicate()[0].split() for process in both) == [["0.0"], ["building", "0.0"]]


@pytest.fixture
def sealed(tmp_path):
    folder = tmp_path / "sealed"
    folder.mkdir()
    (folder / "a").write_text("first")
    (folder / "b").write_text("second")
    files.write_checksums(folder)
    files.refuse_damaged(folder)
    return folder


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("name", ["a", files.SUMS])
def test_a_damaged_file_of_a_sealed_folder_is_found(sealed, name, damage):
    (sealed / name).write_bytes(damage((sealed / name).read_bytes()))
    with pytest.raises(ValueError, match="not what SHA256SUMS lists"):
        files.refuse_damaged(sealed)


@pytest.mark.parametrize("name", ["a", files.SUMS, "c"])
def test_a_file_that_is_missing_or_one_too_many_is_found(sealed, name):
    path = sealed / name
    path.unlink() if path.exists() else path.touch()
    with pytest.raises(ValueError, match=name):
        files.refuse_damaged(sealed)


def test_the_sums_are_those_of_coreutils(sealed):
    subprocess.run(["sha256sum", "--check", "--strict", files.SUMS], cwd=sealed, check=True, capture_output=True)


def test_a_failed_block_leaves_what_was_there(tmp_path):
    (tmp_path / "a").write_text("before")
    with pytest.raises(ZeroDivisionError), files.atomic_write(tmp_path / "a") as temporary:
        temporary.write_text("after")
        raise ZeroDivisionError
    assert only(tmp_path).read_text() == "before"


def test_the_first_of_two_equal_folders_stays(tmp_path):
    with files.atomic_write(tmp_path / "folder") as late:
        late.mkdir()
        (late / "made by").write_text("the second")
        with files.atomic_write(tmp_path / "folder") as early:
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
    with files.atomic_write(tmp_path / "folder") as made:
        made.mkdir()
        (made / "a").write_text("x")
    assert done == [str(made / "a"), str(made), "rename", str(tmp_path)]


WRITER = """
import sys, time
from pathlib import Path
from experiments.files import atomic_write
with atomic_write(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    print("written", flush=True)
    time.sleep(600)
"""


def test_what_a_killed_process_left_goes_after_a_day(tmp_path):
    command = [sys.executable, "-c", WRITER, tmp_path / "killed"]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert writer.stdout.readline() == b"written\n"
    writer.kill()
    writer.communicate()
    left = only(tmp_path, f"{files.TEMPORARY}*")
    files.write_text(tmp_path / "new", "whole")
    assert only(tmp_path, f"{files.TEMPORARY}*") == left  # its maker may be alive
    os.utime(left, (long_ago := time.time() - 1.1 * files.DAY, long_ago))
    files.write_text(tmp_path / "new", "whole")
    assert only(tmp_path).read_text() == "whole" and not list(tmp_path.glob(".*"))


def test_a_checkout_is_its_commit_and_whether_code_changed_beside_it(monkeypatch, tmp_path):
    unknown = {"git_commit": "", "git_dirty": False}
    monkeypatch.setattr(sources, "repository_root", lambda: tmp_path)
    if shutil.which("git"):
        assert sources.checkout.__wrapped__() == unknown  # no repository
        named = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        for arguments in (["init", "--quiet"], [*named, "commit", "--quiet", "--allow-empty", "--message", "x"]):
            subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
        assert re.fullmatch("[0-9a-f]{40}", sources.checkout.__wrapped__()["git_commit"])
        (tmp_path / "dmlrepro").mkdir()
        assert sources.checkout.__wrapped__()["git_dirty"] is False
        (tmp_path / "dmlrepro" / "new.py").touch()
        assert sources.checkout.__wrapped__()["git_dirty"] is True
    monkeypatch.setenv("PATH", "")
    assert sources.checkout.__wrapped__() == unknown
