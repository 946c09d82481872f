"""An index holds every readable image once, whatever happens while it is made; what is found is what is nearest."""

import csv
import html.parser
import io
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import TINY

from experiments import cli
from experiments.deploy import embedding, finding, folders, indexing, models, page
from experiments.training import runs

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory, shared_cache):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DMLREPRO_CACHE", str(shared_cache))
        return models.export(runs.run(TINY), tmp_path_factory.mktemp("model") / "model.safetensors")


def picture(path: Path, seed: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (40, 36), dtype=np.uint8)).save(path)
    return path


@pytest.fixture
def folder(tmp_path):
    """Flat and nested images with names of several scripts, two that are none, and other files."""
    names = [
        "flat.png",
        "猫/三毛.png",
        "猫/黒.png",
        "a/b/deep.jpg",
        "a/日本 語.png",
        "<script>alert(1)<script>/x&y.png",
    ]
    for seed, name in enumerate(names):
        picture(tmp_path / "images" / name.replace("</", "<"), seed)
    (tmp_path / "images" / "broken.jpg").write_bytes(b"no image")
    half = (tmp_path / "images" / "flat.png").read_bytes()[:700]
    (tmp_path / "images" / "a" / "half.png").write_bytes(half)
    (tmp_path / "images" / "notes.txt").write_text("no image")
    picture(tmp_path / "images" / ".hidden" / "thumb.png", 9)
    return tmp_path / "images"


def test_readable_images_are_embedded_and_the_others_are_listed(model, folder, tmp_path):
    index = indexing.embed_folder(model, folder, tmp_path / "index")
    assert [image.path for image in index.images] == sorted(
        ["flat.png", "猫/三毛.png", "猫/黒.png", "a/b/deep.jpg", "a/日本 語.png", "<script>alert(1)<script>/x&y.png"]
    )
    assert {image.label for image in index.images} == {"", "猫", "a", "a/b", "<script>alert(1)<script>"}
    loaded = models.load(model)
    alone = torch.cat([loaded.vectors(loaded.read(folder / image.path)[None]) for image in index.images])
    assert np.allclose(index.vectors, alone, atol=1e-6) and index.vectors.dtype == np.float32
    lines = (tmp_path / "index" / "unreadable.txt").read_text(encoding="utf8").splitlines()
    assert [line.split("\t")[0] for line in lines] == ["a/half.png", "broken.jpg"] and index.unreadable == 2
    assert "cannot identify image file" in lines[1] and str(folder) not in lines[1]


def test_faiss_reads_what_it_is_given(model, folder, tmp_path):
    faiss = pytest.importorskip("faiss")
    pytest.importorskip("faiss.contrib.torch_utils")  # its search takes plain arrays and tensors only
    index = indexing.embed_folder(model, folder, tmp_path / "index")
    assert faiss.read_index(str(tmp_path / "index" / "index.faiss")).search(index.vectors[2:3], 1)[1].tolist() == [[2]]


def test_only_what_changed_is_embedded_again(model, folder, tmp_path, monkeypatch):
    before = indexing.embed_folder(model, folder, tmp_path / "index")
    read, original = [], models.Model.read
    monkeypatch.setattr(models.Model, "read", lambda self, path: read.append(Path(path).name) or original(self, path))
    assert indexing.embed_folder(model, folder, tmp_path / "index").images == before.images and read == []
    picture(folder / "new.png", 20)
    picture(folder / "flat.png", 21)
    (folder / "猫" / "黒.png").unlink()
    index = indexing.embed_folder(model, folder, tmp_path / "index")
    assert set(read) == {"new.png", "flat.png", "half.png", "broken.jpg"}  # the last two could be whole by now
    monkeypatch.undo()
    fresh = indexing.embed_folder(model, folder, tmp_path / "fresh")
    assert index.images == fresh.images and np.allclose(index.vectors, fresh.vectors, atol=1e-6)
    assert "new.png" in {image.path for image in index.images}


SLOW = """
import sys, time
from experiments.deploy import indexing, models
read = models.Model.read
models.Model.read = lambda self, path: time.sleep(0.05) or read(self, path)
indexing.embed_folder(*sys.argv[1:], batch_size=2)
"""


def test_a_killed_process_is_gone_on_from_and_no_image_comes_twice(model, tmp_path, monkeypatch):
    for seed in range(30):
        picture(tmp_path / "images" / f"{seed:02}.png", seed)
    arguments = [str(path) for path in (model, tmp_path / "images", tmp_path / "index")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", SLOW, *arguments], env=environment)
    part = tmp_path / "index" / indexing.PART
    row = 4 * TINY.embedding_size
    while not (part.exists() and part.stat().st_size >= 6 * row):
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with pytest.raises(ValueError, match="is not finished; the same `python -m experiments embed` again"):
        indexing.open_index(tmp_path / "index")
    with part.open("ab") as file:
        file.write(b"half a row")
    done = part.stat().st_size // row
    read, original = [], models.Model.read
    monkeypatch.setattr(models.Model, "read", lambda self, path: read.append(Path(path).name) or original(self, path))
    index = indexing.embed_folder(*arguments, batch_size=2)
    assert 6 <= done < 30 and sorted(read) == [f"{seed:02}.png" for seed in range(done, 30)]
    assert [image.path for image in index.images] == [f"{seed:02}.png" for seed in range(30)]
    fresh = indexing.embed_folder(model, tmp_path / "images", tmp_path / "fresh")
    assert np.allclose(index.vectors, fresh.vectors, atol=1e-6)
    assert not part.exists()


def test_two_at_once_make_one_index(model, folder, tmp_path):
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(indexing.embed_folder, model, folder, tmp_path / "index", 1) for _ in range(2)]
        first, second = (future.result() for future in futures)
    assert first.images == second.images and len(first.vectors) == 6


def test_what_cannot_be_embedded_is_said_before_anything_is_written(model, folder, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty: no images; expected files that end in \.jpg"):
        indexing.embed_folder(model, tmp_path / "empty", tmp_path / "index")
    with pytest.raises(FileNotFoundError, match="expected a folder of images, found a file"):
        indexing.embed_folder(model, folder / "flat.png", tmp_path / "index")
    assert not (tmp_path / "index").exists()
    with pytest.raises(ValueError, match="exists and is no index"):
        indexing.embed_folder(model, folder, folder)
    (tmp_path / "empty" / "a.png").write_text("none")
    with pytest.raises(ValueError, match=r"none of its 1 images can be read: a\.png"):
        indexing.embed_folder(model, tmp_path / "empty", tmp_path / "bad")


def test_an_index_of_another_folder_or_model_is_not_overwritten(model, folder, tmp_path):
    indexing.embed_folder(model, folder, tmp_path / "index")
    with pytest.raises(ValueError, match="is an index of another folder"):
        indexing.embed_folder(model, folder / "a", tmp_path / "index")
    other = models.export(runs.run(TINY.replace(seed=1)), tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="is an index of another model"):
        indexing.embed_folder(other, folder, tmp_path / "index")


def test_a_damaged_index_is_named(model, folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="no index in"):
        finding.find(tmp_path / "index", [folder / "flat.png"])
    indexing.embed_folder(model, folder, tmp_path / "index")
    with (tmp_path / "index" / "vectors.npy").open("r+b") as file:
        file.seek(200)
        file.write(b"\0\0\0\0")
    with pytest.raises(ValueError, match=r"vectors\.npy is not as it was made"):
        finding.find(tmp_path / "index", [folder / "flat.png"])


def test_a_link_to_a_folder_above_ends(tmp_path):
    picture(tmp_path / "a" / "x.png", 0)
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    assert [image.path for image in folders.listed(tmp_path)[0]] == ["a/x.png"]


def test_names_that_are_no_text_are_listed_and_left_out(model, tmp_path):
    picture(tmp_path / "images" / "x.png", 0)
    os.rename(picture(tmp_path / "images" / "y.png", 1), os.fsencode(tmp_path / "images") + b"/\xff.png")
    index = indexing.embed_folder(model, tmp_path / "images", tmp_path / "index")
    assert [image.path for image in index.images] == ["x.png"]
    assert "\\xff.png\t" in (tmp_path / "index" / "unreadable.txt").read_text(encoding="utf8")


@pytest.mark.parametrize("rows", [7, 2**15])
def test_both_ways_of_searching_are_that_of_all_products(rows, monkeypatch):
    monkeypatch.setattr(finding, "ROWS", rows)
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((500, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[40] = vectors[7]
    queries = vectors[:90]
    products = queries.astype(np.float64) @ vectors.T.astype(np.float64)
    expected = np.argsort(-products, axis=1, kind="stable")[:, :12]
    monkeypatch.setattr(finding.importlib.util, "find_spec", lambda name: None)
    neighbours, values = finding.nearest(queries, vectors, 12)
    assert np.allclose(values, np.take_along_axis(products, expected, 1), atol=1e-6)
    assert (neighbours == expected).mean() > 0.99 and neighbours[7, :2].tolist() == [7, 40]
    monkeypatch.undo()
    with_faiss, its_values = finding.nearest(queries, vectors, 12)
    assert np.allclose(its_values, values, atol=1e-6) and (with_faiss == neighbours).mean() > 0.99


def test_an_image_of_the_index_finds_itself_and_folders_are_queries_too(model, folder, tmp_path):
    index = indexing.embed_folder(model, folder, tmp_path / "index")
    answer = finding.find(tmp_path / "index", [folder / "猫", folder / "flat.png"], k=50)
    assert [query.name for query in answer.queries] == ["三毛.png", "黒.png", "flat.png"]
    assert answer.rows.shape == (3, len(index.images))
    assert [answer.image(row).path for row in answer.rows[:, 0]] == ["猫/三毛.png", "猫/黒.png", "flat.png"]
    assert np.allclose(answer.distances[:, 0], 0, atol=1e-6) and (np.diff(answer.distances, axis=1) >= 0).all()
    text = io.StringIO()
    answer.write_csv(text)
    rows = list(csv.DictReader(io.StringIO(text.getvalue())))
    assert len(rows) == 18 and rows[6]["path"] == "猫/黒.png" and rows[6]["label"] == "猫" and rows[6]["rank"] == "1"


class Page(html.parser.HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.tags, self.links, self.said = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]

    def handle_data(self, data):
        self.said.append(data)


def test_the_page_needs_nothing_else_and_no_name_is_code(model, folder, tmp_path):
    indexing.embed_folder(model, folder, tmp_path / "index")
    evil = picture(tmp_path / '<script>alert("1")<img src=x>.png', 3)
    (folder / "猫" / "黒.png").unlink()
    answer = finding.find(tmp_path / "index", [evil, folder / "broken.jpg"], k=6)
    text = page.write(answer, tmp_path / "page.html").read_text(encoding="utf8")
    shown = Page(text)
    assert "script" not in shown.tags and shown.tags.count("img") == 6  # one of the files is gone
    assert all(link.startswith("data:image/jpeg;base64,") for link in shown.links) and len(shown.links) == 6
    assert not any(word in text for word in ("http:", "https:", "@import", "url("))
    visible = "\n".join(shown.said)
    assert evil.name in visible and "猫/三毛.png" in visible and "<script>alert(1)<script>/x&y.png" in visible
    assert "not readable now" in visible and "broken.jpg: UnidentifiedImageError" in visible


def test_the_three_commands_as_they_are_typed(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shorter = ["-p", "steps", "2", "-p", "seeds", "1"]

    def said(*arguments, status=0):
        assert cli.main([str(argument) for argument in arguments]) == status
        return capsys.readouterr()

    assert said("export", "01", "a.safetensors", *shorter, "-p", "methods", "untrained,PFML")
    by_name = said("export", "01", "b.safetensors", *shorter, "--method", "PFML part=head;steps=2").out
    assert by_name.startswith("# PFML part=head;steps=2 glyphs seed 0") and "torch.export.load('b.pt2'" in by_name
    assert (
        "6 images in index; 2 others: index/unreadable.txt"
        in said("embed", "b.safetensors", folder, "--out", "index").out
    )
    assert said("find", "index", folder / "flat.png", "-k", "2").out.splitlines()[0] == ",".join(finding.COLUMNS)
    assert "1 queries in p.html" in said("find", "index", folder / "flat.png", "--html", "p.html").out
    assert "broken.jpg" in said("find", "index", folder / "flat.png", folder / "broken.jpg", status=1).err
    wrong = said("export", "01", "c.safetensors", *shorter, "--method", "Tripel", status=2).err
    assert "0 runs for --method Tripel" in wrong and "ProxyAnchor" in wrong
    several = said("export", "01", "c.safetensors", *shorter, "--method", "PFML", status=2).err
    assert "2 runs for --method PFML" in several and "'PFML part=head;steps=1'" in several
    assert "ProxyAnchor" not in several
    assert "runs for --method None" in said("export", "10", "c.safetensors", status=2).err
    assert "none of the 1 query images" in said("find", "index", folder / "broken.jpg", status=2).err


def test_vectors_of_no_direction_are_told_from_others(model):
    loaded = models.load(model)
    torch.nn.init.zeros_(loaded.network.head.weight)
    torch.nn.init.zeros_(loaded.network.head.bias)
    images = torch.zeros(2, 1, 32, 32, dtype=torch.uint8)
    assert loaded.vectors(images).isnan().all()
    assert next(embedding.embedded(loaded, [[None]])).shape == (1, TINY.embedding_size)
