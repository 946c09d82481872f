"""`python -m experiments data fetch NAME`: download, verify and unpack a data set into its official layout.

A file counts only once its checksum is right; an archive unpacks beside its place and is moved there whole. Nothing
that exists is overwritten. Archives that were put by hand where an error says are verified and unpacked as well.
"""

import http.client
import json
import shutil
import socket
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

from pytorch_metric_learning.datasets import CUB, StanfordOnlineProducts
from torch.hub import download_url_to_file
from torchvision.datasets import MNIST, Omniglot
from torchvision.datasets.utils import check_integrity

from experiments.datasets import manifests
from experiments.files import atomic_write, data_root, temporary_folder

TIMEOUT = 30  # seconds without an answer


class Source(NamedTuple):
    """A file to have. Its md5 is as published with torchvision (Omniglot) or used by several public code bases."""

    file: str  # its path below the data folder
    urls: tuple[str, ...] = ()  # where it can be downloaded, best first; none if only by hand
    md5: str | None = None
    unpacks: bool = False  # a .tgz or .zip becomes the folder of its name


_SOP = "http://ftp.cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip", StanfordOnlineProducts.DOWNLOAD_URL
SOURCES = {
    "mnist": [],  # by torchvision
    "omniglot": [
        Source(f"omniglot/{name}.zip", (f"{Omniglot.download_url_prefix}/{name}.zip",), md5)
        for name, md5 in Omniglot.zips_md5.items()
    ],
    "cub": [Source("CUB_200_2011.tgz", (CUB.DOWNLOAD_URL,), "97eceeb196236b17998738112f37df78", True)],
    "cars": [
        Source("Cars196/car_ims.tgz", (), "d5c8f0aa497503f355e17dc7886c3f14", True),
        Source("Cars196/cars_annos.mat", (), "b407c6086d669747186bd1d764ff9dbc"),
    ],
    "sop": [Source("Stanford_Online_Products.zip", _SOP, "7f73d41a2f44250d4779881525aea32e", True)],
    "inshop": [Source("InShop/Img/img.zip", unpacks=True), Source("InShop/Eval/list_eval_partition.txt")],
}


def fetch(name: str) -> None:
    """Make a set available below `files.data_root()` and print its table, or what to do by hand.

    Raises:
        ValueError: unknown name.
        OSError: a file could not be had, or is damaged or of a wrong checksum; says what to do by hand.
    """
    if name in manifests.DRAWN:
        return print(f"{name} are drawn on first use; there is nothing to fetch")
    if name not in SOURCES:
        raise ValueError(f"unknown data set {name!r}; there are {', '.join(SOURCES)}")
    root = data_root()
    try:
        for source in [] if name == "cars" and (root / "Cars196" / "names.csv").is_file() else SOURCES[name]:
            file = root / source.file
            if source.unpacks and file.with_suffix("").exists():
                continue
            if file.exists():
                verify(file, source.md5)
            else:
                download(source.urls, file, source.md5)
            if source.unpacks:
                unpack(file, file.with_suffix(""))
            print(f"{file}: ready")
        if name == "mnist":
            MNIST(root, download=True)
    except (OSError, RuntimeError) as error:  # the latter by torchvision
        missing = [f"Download {' or '.join(source.urls)} to {root / source.file}." for source in SOURCES[name]]
        by_hand = json.loads(Path(__file__).with_name("by_hand.json").read_text(encoding="utf8"))
        steps = "\n".join(by_hand.get(name, missing)).replace("{root}", str(root))
        again = "Then run this command again: it verifies, unpacks and counts what is there."
        raise OSError(f"{error}\nIf it stays so, by hand:\n{steps}\n{again}") from error
    print(manifests.check(name))


def download(urls: tuple[str, ...], file: Path, md5: str | None) -> None:
    """Download to `file`; the first url that delivers it counts. OSError names what went wrong with each."""
    failures = [] if urls else ["it cannot be downloaded automatically"]
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)  # torch has none, and a server that is silent would be waited for
    try:
        for url in urls:
            try:
                with atomic_write(file) as temporary:
                    download_url_to_file(url, str(temporary))
                    verify(temporary, md5)  # a page that says sorry has status 200 too
                return
            except (OSError, http.client.HTTPException) as error:
                failures.append(f"{url}: {error}")
    finally:
        socket.setdefaulttimeout(before)
    raise OSError(f"{file}: missing ({'; '.join(failures)})")


def verify(file: Path, md5: str | None) -> None:
    """OSError unless `file` has the checksum."""
    if not check_integrity(str(file), md5):
        raise OSError(f"{file}: expected md5 {md5}, found another; damaged or changed")


def unpack(archive: Path, result: Path) -> None:
    """Unpack a .tgz or .zip whose top folder becomes the folder `result` of its name; members of a .zip that lead out
    of it are left out. OSError, and nothing is unpacked, if the archive is damaged, or a member of a .tgz leads out."""
    try:
        with temporary_folder(result.parent) as folder:
            shutil.unpack_archive(archive, folder, filter="data" if archive.suffix == ".tgz" else None)
            if not (folder / result.name).is_dir():
                raise OSError(f"expected a folder {result.name} in it")
            (folder / result.name).rename(result)
    except (OSError, tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, RuntimeError) as error:  # a password
        raise OSError(f"{archive}: not unpacked ({error}); fetch it again, or unpack it to {result}") from error
