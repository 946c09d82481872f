"""`python -m experiments data fetch NAME`: download, verify and unpack a data set into its official layout.

An interrupted download resumes; a file counts only once its checksum is right; an archive unpacks beside its place and
is moved there whole. Nothing that exists is overwritten. Where nothing could be had, the error says what to do by hand;
archives that were put where the instructions say are verified and unpacked by the same command.
"""

import gzip
import hashlib
import http.client
import os
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

from experiments.datasets import layouts, manifests
from experiments.files import data_root, replacing, staging

CHUNK = 1 << 20  # bytes
TIMEOUT = 15  # seconds without an answer, of each address of each mirror


@dataclass(frozen=True)
class Source:
    """A file to have: where it comes from, where it goes, what it becomes.

    Attributes:
        file: its path below the data folder.
        urls: where it can be downloaded, best first; none if only by hand.
        md5: as published with torchvision (MNIST, Omniglot) or used by several public code bases (the others); None
            where no checksum is known, then the sha256 of the first copy is kept beside it and compared from then on.
        unpacks_to: the folder (from .tgz, .zip) or file (from .gz) below the data folder that it becomes.
    """

    file: str
    urls: tuple[str, ...] = ()
    md5: str | None = None
    unpacks_to: str | None = None


_MNIST_MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/")
_OMNIGLOT = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/"
# These are the authors' servers, which have not answered since 2023; the copies that live are in BY_HAND.
_CARS = ("http://ai.stanford.edu/~jkrause/car196/", "http://imagenet.stanford.edu/internal/car196/")
_MNIST_MD5 = {
    "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
}
SOURCES = {
    "mnist": tuple(
        Source(f"MNIST/raw/{name}.gz", tuple(f"{url}{name}.gz" for url in _MNIST_MIRRORS), md5, f"MNIST/raw/{name}")
        for name, md5 in _MNIST_MD5.items()
    ),
    "omniglot": (
        Source(
            "omniglot/images_background.zip",
            (_OMNIGLOT + "images_background.zip",),
            "68d2efa1b9178cc56df9314c21c6e718",
        ),
        Source(
            "omniglot/images_evaluation.zip",
            (_OMNIGLOT + "images_evaluation.zip",),
            "6b91aef0f799c5bb55b94e3f2daec811",
        ),
    ),
    "cub": (
        Source(
            "CUB_200_2011.tgz",
            ("https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",),
            "97eceeb196236b17998738112f37df78",
            "CUB_200_2011",
        ),
    ),
    "cars": (
        Source(
            "Cars196/car_ims.tgz",
            tuple(f"{url}car_ims.tgz" for url in _CARS),
            "d5c8f0aa497503f355e17dc7886c3f14",
            "Cars196/car_ims",
        ),
        Source(
            "Cars196/cars_annos.mat",
            tuple(f"{url}cars_annos.mat" for url in _CARS),
            "b407c6086d669747186bd1d764ff9dbc",
        ),
    ),
    "sop": (
        Source(
            "Stanford_Online_Products.zip",
            (
                "http://ftp.cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip",
                "ftp://cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip",
                # the link of the authors' repository, as pytorch-metric-learning downloads it
                "https://drive.usercontent.google.com/download?id=1TclrpQOF_ullUP99wk_gjGN8pKvtErG8"
                "&export=download&authuser=0&confirm=t",
            ),
            "7f73d41a2f44250d4779881525aea32e",
            "Stanford_Online_Products",
        ),
    ),
    "inshop": (
        Source("InShop/Img/img.zip", (), None, "InShop/Img/img"),
        Source("InShop/Eval/list_eval_partition.txt"),
    ),
}
BY_HAND = {
    "cars": """\
The authors' servers have not answered since 2023. Any one of three copies will do; all have the same 16,185 images, and
the classes are split again, 1 to 98 for training:
a) pytorch-metric-learning's copy. Download
   https://www.kaggle.com/api/v1/datasets/download/jutrera/stanford-car-dataset-by-classes-folder and unzip it into
   {root}/Cars196/, so that names.csv, anno_train.csv, anno_test.csv and car_data/ lie there.
b) cars_train/ and cars_test/ with devkit/cars_train_annos.mat, devkit/cars_meta.mat and
   cars_test_annos_withlabels.mat, in {root}/Cars196/ or, as torchvision has them, {root}/stanford_cars/. The images are
   on https://www.kaggle.com/datasets/jessicali9530/stanford-cars-dataset, devkit/ is
   https://github.com/pytorch/vision/files/11644847/car_devkit.tgz, and
   https://github.com/pytorch/vision/issues/7545#issuecomment-1631441616 links the file with the test labels. The
   cars_annos.mat beside these images has the names of (c) and does not fit them.
c) the original car_ims.tgz (1.9 GB, 000001.jpg to 016185.jpg) and cars_annos.mat, in {root}/Cars196/.
Then run this command again: it compares the originals with their checksums and unpacks them, and counts any copy.""",
    "sop": """\
1. Follow the link on https://cvgl.stanford.edu/projects/lifted_struct/ or on
   https://github.com/rksltnl/Deep-Metric-Learning-CVPR16 to Stanford_Online_Products.zip (2.9 GiB); the latter's is
   https://drive.google.com/uc?id=1TclrpQOF_ullUP99wk_gjGN8pKvtErG8.
2. Put it into {root}/.
3. Run this command again: it verifies and unpacks the archive.""",
    "inshop": """\
1. Open https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html, agree to the terms (research only), and
   follow the link to the shared folder "In-shop Clothes Retrieval Benchmark".
2. Put Img/img.zip (the 256 x 256 images, not img_highres.zip) into {root}/InShop/Img/.
3. Put Eval/list_eval_partition.txt into {root}/InShop/Eval/.
4. Run this command again: it unpacks the images and counts them.""",
}


def fetch(name: str, root: str | Path | None = None) -> None:
    """Make a set available below `root` (default `files.data_root()`) and print its table, or what to do by hand.

    Raises:
        ValueError: unknown name; a download or archive that is damaged, truncated, of the wrong checksum or unsafe.
        ConnectionError: no server could be reached or one broke off; what arrived is kept and the next call resumes.
        FileNotFoundError: a file that cannot be downloaded is missing. These two say what to do by hand.
    """
    if name == "glyphs":
        print("glyphs are drawn on first use; there is nothing to fetch")
        return
    if name not in SOURCES:
        raise ValueError(f"unknown data set {name!r}; there are {', '.join(SOURCES)}")
    root = Path(root or data_root())
    sources = SOURCES[name]
    if name == "cars" and layouts.cars_layout(root)[1] != "original":
        sources = ()  # another public copy is there
    for source in sources:
        try:
            obtained = _obtain(source, root)
        except (ConnectionError, ValueError) as error:
            kind = ConnectionError if isinstance(error, ConnectionError) else ValueError
            raise kind(f"{error}\nIf it stays so, by hand:\n{_by_hand(name, root)}") from error
        if not obtained:
            raise FileNotFoundError(
                f"{name} cannot be downloaded automatically: {root / source.file} is missing.\n{_by_hand(name, root)}"
            )
    print(manifests.check(name, root))


def _by_hand(name: str, root: Path) -> str:
    if name in BY_HAND:
        return BY_HAND[name].format(root=root)
    steps = [f"{' or '.join(source.urls)}\n   to {root / source.file}" for source in SOURCES[name]]
    lines = [f"{number}. Download {step}" for number, step in enumerate(steps, 1)]
    return "\n".join([*lines, f"{len(lines) + 1}. Run this command again: it verifies and unpacks what is there."])


def _obtain(source: Source, root: Path) -> bool:
    """True once the source is in place and unpacked; False if that takes hands."""
    file, result = root / source.file, root / (source.unpacks_to or source.file)
    if result.exists() and source.unpacks_to:
        print(f"{result}: already there")
        return True
    if not file.exists():
        if not source.urls:
            return False
        download(source.urls, file, source.md5)
    else:
        verify(file, source.md5)
    if source.unpacks_to:
        unpack(file, result)
    print(f"{result}: ready")
    return True


def download(urls: tuple[str, ...], file: Path, md5: str | None) -> None:
    """Download to `file` by way of `file`.part, which a later call resumes; the first url that delivers it counts.

    Raises ValueError if one delivered something of a wrong checksum and none the file, else ConnectionError.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(file.name + ".part")
    failures, kind = [], ConnectionError
    for url in urls:
        try:
            _transfer(url, part)
            verify(part, md5)
        except (OSError, http.client.HTTPException) as error:
            failures.append(f"{url}: {error}")
        except ValueError as error:  # a page that says sorry has status 200 too
            part.unlink()
            failures.append(f"{url}: {error}")
            kind = ValueError
        else:
            os.replace(part, file)
            return
    kept = f"; {part.stat().st_size} bytes are kept, the next call resumes there" if part.exists() else ""
    raise kind(
        f"{file}: download failed ({'; '.join(failures)}){kept}; mend the network or HTTPS_PROXY and start again"
    )


def _transfer(url: str, part: Path) -> None:
    from tqdm import tqdm

    start = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "dmlrepro"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if start and error.code == 416:  # nothing left to send: the checksum decides
            return
        raise
    with response:
        if start and not (response.headers.get("Content-Range") or "").startswith(f"bytes {start}-"):
            start = 0  # the server does not resume and sends everything
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else None
        bar = tqdm(desc=url.rsplit("/", 1)[1], total=total, initial=start, unit="B", unit_scale=True, disable=None)
        with bar, part.open("ab" if start else "wb") as out:
            while chunk := response.read(CHUNK):
                out.write(chunk)
                bar.update(len(chunk))
    if total and part.stat().st_size != total:
        raise ConnectionError(f"the connection ended after {part.stat().st_size} of {total} bytes")


def verify(file: Path, md5: str | None) -> None:
    """ValueError unless `file` has the checksum; without a known one, that of the first copy is kept and compared."""
    with file.open("rb") as content:
        checksum = hashlib.file_digest(content, "md5" if md5 else "sha256").hexdigest()
    if md5 is None:
        record = file.with_name(file.name + ".sha256")
        if not record.exists():
            with replacing(record) as temporary:
                temporary.write_text(checksum + "\n")
            print(f"{file}: no published checksum; sha256 {checksum} is recorded in {record.name}")
        expected = record.read_text().strip()
    else:
        expected = md5
    if checksum != expected:
        raise ValueError(
            f"{file}: expected {'md5' if md5 else 'sha256'} {expected}, found {checksum}; damaged or changed"
        )


def unpack(archive: Path, result: Path) -> None:
    """Unpack a .gz to the file `result`, or a .tgz or .zip, whose top folder has the name of `result`, to that folder.

    Raises ValueError, and leaves nothing behind, if the archive is damaged, truncated or encrypted, or if a member has
    an absolute path, climbs with "..", or links out of the folder.
    """
    try:
        if archive.suffix == ".gz":
            with replacing(result) as temporary, gzip.open(archive) as packed, temporary.open("wb") as out:
                shutil.copyfileobj(packed, out, CHUNK)
            return
        with staging(result.parent) as temporary:
            (_unpack_zip if archive.suffix == ".zip" else _unpack_tar)(archive, temporary)
            if not Path(temporary, result.name).is_dir():
                names = ", ".join(sorted(os.listdir(temporary))[:5])
                raise ValueError(f"{archive}: expected a folder {result.name} in it, found {names or 'nothing'}")
            Path(temporary, result.name).rename(result)
    except tarfile.FilterError as error:
        raise ValueError(f"{archive}: unsafe member ({error}); nothing was unpacked") from error
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{archive}: damaged or truncated ({error}); delete it and fetch again") from error
    except RuntimeError as error:  # zipfile's word for a missing password
        raise ValueError(f"{archive}: cannot be unpacked ({error}); unpack it by hand to {result}") from error


def _unpack_tar(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as packed:
        for member in packed:
            _refuse_unsafe(archive, member.name)
            packed.extract(member, folder, filter="data")  # which refuses links out of the folder and devices


def _unpack_zip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as packed:
        for member in packed.infolist():
            _refuse_unsafe(archive, member.filename)
            packed.extract(member, folder)


def _refuse_unsafe(archive: Path, name: str) -> None:
    for path in (PurePosixPath(name), PureWindowsPath(name)):
        if path.is_absolute() or path.drive or ".." in path.parts:
            raise ValueError(f"{archive}: unsafe member {name!r} leads out of the folder; nothing was unpacked")
