"""Fetching from a server on this machine: resume, checksums, damaged and hostile archives."""

import dataclasses
import gzip
import hashlib
import io
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import official_layouts as layouts
import pytest

from experiments import cli
from experiments.datasets import downloads, manifests
from experiments.datasets.downloads import Source


class Server(ThreadingHTTPServer):
    """Serves `files` by name; breaks off after `limit` bytes of a response; can do without ranges."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.limit, self.ranges, self.asked = {}, None, True, []

    def url(self, name):
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server, asked = self.server, self.headers.get("Range")
        server.asked.append(asked)
        content = server.files.get(self.path[1:])
        if content is None:
            return self.send_error(404)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and server.ranges else 0
        if start >= len(content):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:][: server.limit])

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def md5(content):
    return hashlib.md5(content).hexdigest()


def tgz(members):
    """members: (name, content) or a TarInfo of its own."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
    return data.getvalue()


def link(name, target):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


@pytest.fixture
def cub(server, tmp_path, monkeypatch):
    """A small CUB archive on the server as source of "cub"; the data folder to fetch into."""
    layouts.write_cub(tmp_path / "made", {1: 3, 101: 3})
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        archive.add(tmp_path / "made" / "CUB_200_2011", "CUB_200_2011")
    offer(server, monkeypatch, data.getvalue())
    return tmp_path / "data"


def offer(server, monkeypatch, content):
    server.files["CUB_200_2011.tgz"] = content
    source = Source("CUB_200_2011.tgz", (server.url("CUB_200_2011.tgz"),), md5(content), "CUB_200_2011")
    monkeypatch.setitem(downloads.SOURCES, "cub", (source,))


# Downloads


def test_fetch_downloads_verifies_unpacks_and_counts(cub, server, capsys):
    downloads.fetch("cub", cub)
    assert manifests.load("cub-subset", cub).num_train_classes == 1
    assert "official counts: no" in capsys.readouterr().out
    assert sorted(path.name for path in cub.iterdir()) == ["CUB_200_2011", "CUB_200_2011.tgz"]
    downloads.fetch("cub", cub)
    assert len(server.asked) == 1  # the second time nothing is transferred


def test_a_broken_transfer_resumes_where_it_ended(cub, server):
    server.limit = 1000
    with pytest.raises(
        ConnectionError, match=r"ended after 1000 of \d+ bytes.*1000 bytes are kept, the next call resumes"
    ):
        downloads.fetch("cub", cub)
    assert not (cub / "CUB_200_2011").exists()
    server.limit = None
    downloads.fetch("cub", cub)
    assert server.asked == [None, "bytes=1000-"]
    assert (cub / "CUB_200_2011.tgz").read_bytes() == server.files["CUB_200_2011.tgz"]


def test_a_server_without_ranges_sends_everything_again(cub, server):
    server.limit = 1000
    with pytest.raises(ConnectionError):
        downloads.fetch("cub", cub)
    server.limit, server.ranges = None, False
    downloads.fetch("cub", cub)
    assert (cub / "CUB_200_2011.tgz").read_bytes() == server.files["CUB_200_2011.tgz"]


def test_a_complete_part_is_not_transferred_again(cub, server):
    cub.mkdir()
    (cub / "CUB_200_2011.tgz.part").write_bytes(server.files["CUB_200_2011.tgz"])
    downloads.fetch("cub", cub)
    assert manifests.load("cub-subset", cub)


def test_the_next_mirror_is_tried(server, tmp_path):
    server.files["b"] = b"content"
    downloads.download((server.url("a"), server.url("b")), tmp_path / "file", md5(b"content"))
    assert (tmp_path / "file").read_bytes() == b"content"
    with pytest.raises(ConnectionError, match=r"file2: download failed.*404"):
        downloads.download((server.url("a"),), tmp_path / "file2", md5(b""))


def test_a_wrong_checksum_is_refused(cub, server):
    server.files["CUB_200_2011.tgz"] += b"x"
    with pytest.raises(ValueError, match=r"CUB_200_2011.tgz.part: expected md5 [0-9a-f]{32}, found [0-9a-f]{32}"):
        downloads.fetch("cub", cub)
    assert list(cub.iterdir()) == []


def test_a_changed_local_archive_is_refused_and_kept(cub):
    cub.mkdir()
    (cub / "CUB_200_2011.tgz").write_bytes(b"mine")
    with pytest.raises(ValueError, match="expected md5"):
        downloads.fetch("cub", cub)
    assert (cub / "CUB_200_2011.tgz").read_bytes() == b"mine"


# Archives


@pytest.mark.parametrize(
    "member",
    [
        ("../outside.txt", b"x"),
        ("CUB_200_2011/../../outside.txt", b"x"),
        ("/tmp/outside.txt", b"x"),
        ("..\\outside.txt", b"x"),
        link("CUB_200_2011/escape", "/etc"),
        link("CUB_200_2011/escape", "../../outside.txt"),
    ],
    ids=["up", "inside and up", "absolute", "backslashes", "link to a folder", "link up"],
)
def test_members_that_lead_out_of_the_folder_are_refused(cub, server, monkeypatch, member):
    offer(server, monkeypatch, tgz([("CUB_200_2011/images.txt", b"1 a.jpg\n"), member]))
    with pytest.raises(ValueError, match=r"CUB_200_2011.tgz: unsafe member.*nothing was unpacked"):
        downloads.fetch("cub", cub)
    assert [path.name for path in cub.iterdir()] == ["CUB_200_2011.tgz"]
    assert not (cub.parent / "outside.txt").exists()


def test_zip_members_that_climb_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "img.zip", "w") as archive:
        archive.writestr("img/a.jpg", b"x")
        archive.writestr("img/../../outside.txt", b"x")
    with pytest.raises(ValueError, match=r"img.zip: unsafe member 'img/../../outside.txt'"):
        downloads.unpack(tmp_path / "img.zip", tmp_path / "img")
    assert [path.name for path in tmp_path.iterdir()] == ["img.zip"]


@pytest.mark.parametrize("name", ["set.tgz", "set.zip", "set.gz"])
def test_truncated_archives_leave_nothing(tmp_path, name):
    content = hashlib.shake_128(b"").digest(100_000)
    if name == "set.zip":
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("set/a", content)
        whole = (tmp_path / name).read_bytes()
    else:
        whole = tgz([("set/a", content)]) if name == "set.tgz" else gzip.compress(content)
    (tmp_path / name).write_bytes(whole[:-2000])
    with pytest.raises(ValueError, match=f"{name}: damaged or truncated"):
        downloads.unpack(tmp_path / name, tmp_path / "set")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_archive_of_something_else_is_refused(tmp_path):
    (tmp_path / "set.tgz").write_bytes(tgz([("other/a", b"x")]))
    with pytest.raises(ValueError, match="expected a folder set in it, found other"):
        downloads.unpack(tmp_path / "set.tgz", tmp_path / "set")


# The sets


def test_mnist_and_omniglot_land_in_their_layouts(server, tmp_path, monkeypatch, capsys):
    made = tmp_path / "made"
    layouts.write_mnist(made, list(range(10)), list(range(10)) * 2)
    layouts.write_omniglot(made, {"Greek": 2}, {"Tengwar": 2})
    for name in ("mnist", "omniglot"):
        local = []
        for source in downloads.SOURCES[name]:
            content = (made / (source.unpacks_to or source.file)).read_bytes()
            content = gzip.compress(content) if source.unpacks_to else content
            served = source.file.rsplit("/", 1)[1]
            assert all(url.endswith(served) for url in source.urls)
            server.files[served] = content
            local.append(Source(source.file, (server.url(served),), md5(content), source.unpacks_to))
        monkeypatch.setitem(downloads.SOURCES, name, tuple(local))
        downloads.fetch(name, tmp_path / "data")
        assert manifests.load(f"{name}-subset", tmp_path / "data").digest() in capsys.readouterr().out


def test_what_takes_hands_is_told_and_then_verified(tmp_path, capsys):
    with pytest.raises(FileNotFoundError, match=r"cannot be downloaded automatically(?s:.*)Put Img/img.zip") as missing:
        downloads.fetch("inshop", tmp_path)
    assert str(tmp_path) in str(missing.value) and "{root}" not in str(missing.value)

    made = layouts.write_inshop(tmp_path / "made", {1: {"train": 2}, 2: {"query": 1, "gallery": 1}})
    (tmp_path / "InShop" / "Img").mkdir(parents=True)
    with zipfile.ZipFile(tmp_path / "InShop" / "Img" / "img.zip", "w") as archive:
        for path in (made / "Img").rglob("*.jpg"):
            archive.write(path, path.relative_to(made / "Img"))
    (tmp_path / "InShop" / "Eval").mkdir()
    (made / "Eval" / "list_eval_partition.txt").rename(tmp_path / "InShop" / "Eval" / "list_eval_partition.txt")
    downloads.fetch("inshop", tmp_path)
    told = capsys.readouterr().out
    assert "no published checksum; sha256" in told and "gallery        1" in told

    downloads.fetch("inshop", tmp_path)
    (tmp_path / "InShop" / "Eval" / "list_eval_partition.txt").write_text("changed")
    with pytest.raises(ValueError, match=r"list_eval_partition.txt: expected sha256"):
        downloads.fetch("inshop", tmp_path)


@pytest.mark.parametrize("name", ["cars", "sop", "cub", "mnist", "omniglot"])
def test_the_command_fails_where_nothing_came_names_all_mirrors_and_says_what_to_do(
    name, server, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("DMLREPRO_DATA", str(tmp_path))
    mirrors = [server.url(f"mirror-{number}") for number in range(len(downloads.SOURCES[name][0].urls))]
    dead = tuple(dataclasses.replace(source, urls=tuple(mirrors)) for source in downloads.SOURCES[name])
    assert mirrors
    monkeypatch.setitem(downloads.SOURCES, name, dead)
    assert cli.main(["data", "fetch", name]) == 2
    told = capsys.readouterr().err
    assert all(f"{url}: HTTP Error 404" in told for url in mirrors)
    assert "un this command again" in told and str(tmp_path) in told


def test_a_page_that_says_sorry_is_not_the_file_and_the_next_mirror_is_asked(server, tmp_path, monkeypatch):
    layouts.write_cub(tmp_path / "made", {1: 2, 101: 2})
    with tarfile.open(tmp_path / "cub.tgz", "w:gz") as archive:
        archive.add(tmp_path / "made" / "CUB_200_2011", "CUB_200_2011")
    server.files |= {"sorry": b"<html>", "cub.tgz": (tmp_path / "cub.tgz").read_bytes()}
    (source,) = downloads.SOURCES["cub"]
    urls = (server.url("sorry"), server.url("cub.tgz"))
    local = dataclasses.replace(source, urls=urls, md5=md5(server.files["cub.tgz"]))
    monkeypatch.setitem(downloads.SOURCES, "cub", (local,))
    downloads.fetch("cub", tmp_path / "data")
    assert len(manifests.load("cub-subset", tmp_path / "data")) == 4
    monkeypatch.setitem(downloads.SOURCES, "cub", (dataclasses.replace(local, urls=urls[:1]),))
    with pytest.raises(ValueError, match=r"sorry: .*expected md5(?s:.*)1. Download .*sorry"):
        downloads.fetch("cub", tmp_path / "elsewhere")


def test_a_public_copy_of_cars_is_enough(tmp_path, capsys):
    layouts.write_cars_by_class(tmp_path / "Cars196", {1: 2, 99: 2}, 196)
    with pytest.raises(ValueError, match="expected images of each of the 196 declared classes"):
        downloads.fetch("cars", tmp_path)  # it is read and counted, nothing is downloaded
    layouts.write_cars_by_class(tmp_path / "all" / "Cars196", dict.fromkeys(range(1, 197), 2), 196)
    downloads.fetch("cars", tmp_path / "all")
    assert "official counts: no" in capsys.readouterr().out


def test_a_dead_link_tells_what_to_do_by_hand(server, tmp_path, monkeypatch):
    (source,) = downloads.SOURCES["sop"]
    assert source.md5 and source.urls
    dead = Source(source.file, (server.url("gone.zip"),), source.md5, source.unpacks_to)
    monkeypatch.setitem(downloads.SOURCES, "sop", (dead,))
    with pytest.raises(ConnectionError, match=r"gone.zip: HTTP Error 404(?s:.*)Put it into .*data/") as error:
        downloads.fetch("sop", tmp_path / "data")
    assert "{root}" not in str(error.value)


def test_names_are_checked(capsys):
    with pytest.raises(ValueError, match="unknown data set 'birds'; there are mnist, omniglot, cub, cars, sop, inshop"):
        downloads.fetch("birds")
    downloads.fetch("glyphs")
    assert "nothing to fetch" in capsys.readouterr().out
