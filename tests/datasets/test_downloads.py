"""Fetching from a server on this machine: checksums, mirrors, damaged and hostile archives."""

import functools
import hashlib
import io
import tarfile
import threading
import zipfile
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import official_layouts as layouts
import pytest
from torchvision.datasets import MNIST

from experiments import cli
from experiments.datasets import downloads, manifests
from experiments.datasets.downloads import Source


@pytest.fixture
def server(tmp_path):
    asked, folder = [], tmp_path / "served"
    folder.mkdir()

    class Handler(SimpleHTTPRequestHandler):
        def log_request(self, *_):
            asked.append(self.path)

        def log_error(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield SimpleNamespace(
            folder=folder, asked=asked, url=lambda file: f"http://127.0.0.1:{server.server_port}/{file}"
        )
        server.shutdown()
        thread.join()


def md5(content):
    return hashlib.md5(content).hexdigest()


def tgz(members, folder=None):
    """members: (name, content), or (name, None) of a link to /etc; folder: one on the disk, with its content."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content or b"")
            if content is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc"
            archive.addfile(info, io.BytesIO(content or b""))
        if folder:
            archive.add(folder, folder.name)
    return data.getvalue()


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("DMLREPRO_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def cub(server, data, tmp_path, monkeypatch):
    """A small CUB archive on the server as source of "cub"; the data folder to fetch into."""
    offer(server, monkeypatch, tgz([], layouts.write_cub(tmp_path / "made", {1: 3, 101: 3})))
    return data


def offer(server, monkeypatch, content):
    (server.folder / "CUB_200_2011.tgz").write_bytes(content)
    urls = server.url("sorry"), server.url("gone"), server.url("CUB_200_2011.tgz")
    (server.folder / "sorry").write_bytes(b"<html>")  # a page that says sorry has status 200 too
    monkeypatch.setitem(downloads.SOURCES, "cub", [Source("CUB_200_2011.tgz", urls, md5(content), True)])


def test_fetch_takes_the_first_mirror_that_delivers_verifies_unpacks_and_counts(cub, server, capsys):
    downloads.fetch("cub")
    assert manifests.load("cub-subset").num_train_classes == 1
    assert "official counts: no" in capsys.readouterr().out
    assert sorted(path.name for path in cub.iterdir()) == ["CUB_200_2011", "CUB_200_2011.tgz"]
    downloads.fetch("cub")
    assert server.asked == ["/sorry", "/gone", "/CUB_200_2011.tgz"]  # the second time nothing is transferred


def test_a_changed_archive_is_refused_a_local_one_kept_and_a_later_transfer_works(cub, server):
    cub.mkdir()
    (cub / "CUB_200_2011.tgz").write_bytes(b"mine")
    with pytest.raises(OSError, match="expected md5"):
        downloads.fetch("cub")
    assert (cub / "CUB_200_2011.tgz").read_bytes() == b"mine"
    (cub / "CUB_200_2011.tgz").unlink()
    served = server.folder / "CUB_200_2011.tgz"
    whole = served.read_bytes()
    for content in (whole[:1000], whole + b"x"):
        served.write_bytes(content)
        with pytest.raises(OSError, match=r"404(?s:.*)CUB_200_2011.tgz: expected md5 [0-9a-f]{32}(?s:.*)Download http"):
            downloads.fetch("cub")
        assert list(cub.iterdir()) == []
    served.write_bytes(whole)
    downloads.fetch("cub")
    assert (cub / "CUB_200_2011.tgz").read_bytes() == whole


@pytest.mark.parametrize("member", [("../outside.txt", b"x"), ("CUB_200_2011/escape", None)])
def test_members_that_lead_out_of_the_folder_are_refused(cub, server, monkeypatch, member):
    offer(server, monkeypatch, tgz([("CUB_200_2011/images.txt", b"1 a.jpg\n"), member]))
    with pytest.raises(OSError, match=r"CUB_200_2011.tgz: not unpacked .*(outside|absolute path)"):
        downloads.fetch("cub")
    assert [path.name for path in cub.iterdir()] == ["CUB_200_2011.tgz"]
    assert not (cub.parent / "outside.txt").exists()


@pytest.mark.parametrize("name", ["set.tgz", "set.zip"])
def test_truncated_archives_leave_nothing_and_zip_members_that_climb_are_left_out(tmp_path, name):
    content = hashlib.shake_128(b"").digest(100_000)
    with zipfile.ZipFile(tmp_path / name, "w") as archive:
        for member in ("set/a", "set/../../outside.txt", "/tmp/outside-of-it.txt"):
            archive.writestr(member, content)
    if name == "set.tgz":
        (tmp_path / name).write_bytes(tgz([("set/a", content)]))
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[:-2000])
    with pytest.raises(OSError, match=f"{name}: not unpacked"):
        downloads.unpack(tmp_path / name, tmp_path / "set")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    (tmp_path / name).write_bytes(whole)
    downloads.unpack(tmp_path / name, tmp_path / "set")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "set", name]
    with pytest.raises(OSError, match="expected a folder other in it"):
        downloads.unpack(tmp_path / name, tmp_path / "other")


def test_omniglot_lands_in_its_layout_and_mnist_is_left_to_torchvision(server, tmp_path, monkeypatch, capsys):
    made, local = tmp_path / "made", []
    layouts.write_omniglot(made, {"Greek": 2}, {"Tengwar": 2})
    for source in downloads.SOURCES["omniglot"]:
        served = source.file.rsplit("/", 1)[1]
        content = (made / source.file).read_bytes()
        (server.folder / served).write_bytes(content)
        assert all(url.endswith(served) for url in source.urls)
        local.append(source._replace(urls=(server.url(served),), md5=md5(content)))
    monkeypatch.setitem(downloads.SOURCES, "omniglot", local)
    downloads.fetch("omniglot")
    assert manifests.load("omniglot-subset").digest() in capsys.readouterr().out
    monkeypatch.setattr(MNIST, "mirrors", [server.url("")])
    with pytest.raises(OSError, match=r"Error downloading(?s:.*)Put {train,t10k}"):
        downloads.fetch("mnist")
    layouts.write_mnist(tmp_path / "data", list(range(10)), list(range(10)) * 2)
    downloads.fetch("mnist")


def test_what_takes_hands_is_told_and_then_unpacked(data, tmp_path, capsys):
    with pytest.raises(OSError, match=r"cannot be downloaded automatically(?s:.*)Put Img/img.zip") as missing:
        downloads.fetch("inshop")
    assert str(data) in str(missing.value) and "{root}" not in str(missing.value)
    made = layouts.write_inshop(tmp_path / "made", {1: {"train": 2}, 2: {"query": 1, "gallery": 1}})
    (data / "InShop" / "Img").mkdir(parents=True)
    with zipfile.ZipFile(data / "InShop" / "Img" / "img.zip", "w") as archive:
        for path in (made / "Img").rglob("*.jpg"):
            archive.write(path, path.relative_to(made / "Img"))
    (made / "Eval").rename(data / "InShop" / "Eval")
    downloads.fetch("inshop")
    assert "gallery        1" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["cars", "sop", "cub", "omniglot"])
def test_the_command_fails_where_nothing_came_names_all_mirrors_and_says_what_to_do(
    name, server, tmp_path, capsys, monkeypatch
):
    mirrors = [server.url(f"mirror-{number}") for number in range(len(downloads.SOURCES[name][0].urls))]
    dead = [source._replace(urls=tuple(mirrors)) for source in downloads.SOURCES[name]]
    monkeypatch.setitem(downloads.SOURCES, name, dead)
    assert cli.main(["data", "fetch", name]) == 2
    told = capsys.readouterr().err
    assert all(f"{url}: HTTP Error 404" in told for url in mirrors)
    assert "un this command again" in told and str(tmp_path) in told and "{root}" not in told


def test_names_are_checked_and_what_is_there_is_not_downloaded(data, capsys):
    with pytest.raises(ValueError, match="unknown data set 'birds'; there are mnist, omniglot, cub, cars, sop, inshop"):
        downloads.fetch("birds")
    downloads.fetch("glyphs")
    assert "nothing to fetch" in capsys.readouterr().out
    layouts.write_cars_by_class(data, dict.fromkeys(range(1, 197), 2))
    downloads.fetch("cars")  # a public copy is enough: it is read and counted
    assert "official counts: no" in capsys.readouterr().out
