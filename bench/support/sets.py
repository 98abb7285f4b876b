"""The benchmark sets: what there is, how each is made, kept and read.

Sets made by bench/data are in CACHE/bench/NAME-ROWSxQUERIES-sSEED as base, queries and about.json,
which holds the SHA-256 of both. A set of texts has these in base.txt and queries.txt, one a line.
Real sets that were downloaded by somebody (Fashion-MNIST, GloVe, BGE) are read from $KNEAR_DATA,
else ../shared/data.
"""

import dataclasses
import functools
import gzip
import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from . import environment, sift, synthetic, text

# The files of a set, as about.json names them; the texts of sets of texts alone.
PARTS = ("base", "queries", "base texts", "queries texts")


class SetError(Exception):
    """A set that cannot be had, in one line."""


@dataclasses.dataclass(frozen=True)
class MadeSet:
    name: str
    what: str
    rows: int
    suffix: str
    make: Callable[[int, int, int, Path], tuple[np.ndarray, np.ndarray, dict]]
    queries: int = 10_000
    # SHA-256 of base and queries at the default size and seed; None where it depends on the
    # machine.
    sha256: tuple[str, str] | None = None


def _synthetic(generator: Callable[[int, int, int], np.ndarray], dim: int):
    def make(rows: int, queries: int, seed: int, cache: Path):
        both = generator(rows + queries, dim, seed)
        return both[:rows], both[rows:], {"NumPy": np.__version__}

    return make


def _text(rows: int, queries: int, seed: int, cache: Path):
    try:
        return text.make(rows, queries, seed, cache)
    except text.TextError as error:
        raise SetError(f"text: {error}") from error


MADE = {
    made.name: made
    for made in (
        MadeSet(
            "unit96",
            "1M x 96 f32, unit norm, clustered, decaying spectrum",
            1_000_000,
            ".npy",
            _synthetic(synthetic.unit, 96),
            sha256=(
                "4d1cd0200bf9aa0cacb8f4afdc258aa4806fe9e25432576d387aa52271fe2fb2",
                "f00825d37ee6b9e7186078b5920fa322358ff8f22b598108faab32fb17604e59",
            ),
        ),
        MadeSet(
            "unit768",
            "300k x 768 f32, as unit96, of the dimension of many sentence embeddings",
            300_000,
            ".npy",
            _synthetic(synthetic.unit, 768),
            sha256=(
                "99724eaaef11bea17cd94776fbcd3d9847bf7fe61cf7e486a80e0e091c1bcbf7",
                "396e92d4b767184634e6d0714475e94337cef0c1a408f060afba328430fc68c8",
            ),
        ),
        MadeSet(
            "uint8",
            "1M x 128 u8, clustered",
            1_000_000,
            ".npy",
            _synthetic(synthetic.bytes_like, 128),
            sha256=(
                "e37c149601cd44042878cab29594fcceea6cd1fb28855f0af49ea77381baf6f4",
                "2e1492adde741cbb043e3f6b263b6bcb3f9521ec6f97f31cebc91ae4d9f6cad3",
            ),
        ),
        MadeSet(
            "sift",
            "real SIFT descriptors, 128 u8, of Debian's photographs, at most 25,000 of each",
            1_000_000,
            ".bvecs",
            functools.partial(sift.make, per_picture=25_000),
        ),
        MadeSet(
            "sift-large",
            "the same with at most 100,000 of each picture, so that there are more",
            1_000_000,
            ".bvecs",
            functools.partial(sift.make, per_picture=100_000),
        ),
        MadeSet(
            "text",
            "real text, 256 f32, unit norm: titles and paragraphs about Debian's packages",
            500_000,
            ".npy",
            _text,
        ),
    )
}


def write(path: Path, values: np.ndarray) -> None:
    if path.suffix == ".npy":
        np.save(path, values)
        return
    record = np.dtype([("dim", "<i4"), ("values", "u1", (values.shape[1],))])
    with open(path, "wb") as out:  # .bvecs: every row begins with its length
        for begin in range(0, len(values), 65536):
            block = np.empty(min(65536, len(values) - begin), record)
            block["dim"] = values.shape[1]
            block["values"] = values[begin : begin + 65536]
            block.tofile(out)


def read(path: Path) -> np.ndarray:
    """A matrix; the rows of .bvecs are 4 bytes apart, as in the file (not contiguous)."""
    if path.suffix == ".npy":
        return np.load(path)
    dim = int(np.fromfile(path, "<i4", 1)[0])
    return np.fromfile(path, np.uint8).reshape(-1, dim + 4)[:, 4:]


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def folder_of(name: str, rows: int, queries: int, seed: int) -> Path:
    try:
        archive = text.archive_suffix() if name == "text" else ""
    except text.TextError as error:
        raise SetError(f"text: {error}") from error
    return environment.cache_folder() / "bench" / f"{name}-{rows}x{queries}-s{seed}{archive}"


def obtain(
    name: str,
    rows: int | None = None,
    queries: int | None = None,
    seed: int = 1,
    say: Callable[[str], None] = note,
) -> dict:
    """Makes the set unless it is in the cache undamaged; says its checksums; returns about.json.

    Throws SetError where the set cannot be made on this machine.
    """
    made = MADE[name]
    rows = made.rows if rows is None else rows
    queries = made.queries if queries is None else queries
    folder = folder_of(name, rows, queries, seed)
    about_file = folder / "about.json"
    if about_file.exists():
        about = json.loads(about_file.read_text())
        damaged = [
            part
            for part in PARTS
            if part in about
            and (
                not (file := folder / about[part]["file"]).exists()
                or sha256(file) != about[part]["sha256"]
            )
        ]
        if not damaged:
            _tell(folder, about, "checked", say)
            return about
        note(f"{name}: {' and '.join(damaged)} in {folder} is damaged: made anew")
    note(f"{name}: making {rows:,} rows ({made.what})")
    base, asked, extra = made.make(rows, queries, seed, folder.parent)
    texts = extra.pop("texts", {})
    partial = folder.with_name(folder.name + ".part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    about = {"set": name, "seed": seed, "folder": str(folder), **extra}
    for part, values in (("base", base), ("queries", asked)):
        file = partial / (part + made.suffix)
        write(file, values)
        shape, kind = list(values.shape), values.dtype.name
        about[part] = {"file": file.name, "shape": shape, "type": kind, "sha256": sha256(file)}
    for part, lines in texts.items():
        file = partial / f"{part}.txt"
        file.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        about[f"{part} texts"] = {"file": file.name, "lines": len(lines), "sha256": sha256(file)}
    (partial / about_file.name).write_text(json.dumps(about, indent=2) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    _tell(folder, about, "made", say)
    default = (rows, queries, seed) == (made.rows, made.queries, 1)
    found = (about["base"]["sha256"], about["queries"]["sha256"])
    if default and made.sha256 is not None and made.sha256 != found:
        note(
            f"{name}: NOTE: these are not the vectors of the project's own figures (other "
            f"SHA-256); NumPy {np.__version__} generates other numbers"
        )
    return about


def _tell(folder: Path, about: dict, done: str, say: Callable[[str], None]) -> None:
    for part in PARTS:
        if part not in about:
            continue
        if "lines" in about[part]:
            content = f"{about[part]['lines']:,} texts"
        else:
            rows, dim = about[part]["shape"]
            content = f"{rows:,} x {dim} {about[part]['type']}"
        file = folder / about[part]["file"]
        say(f"{file}  {content}  {done}  sha256 {about[part]['sha256']}")


def _idx(path: Path) -> np.ndarray:
    """The images of a gzipped MNIST idx file, [n x pixels] u8."""
    content = gzip.decompress(path.read_bytes())
    if content[:4] != b"\0\0\x08\x03":
        raise SetError(f"{path} is no idx file of images")
    count, height, width = np.frombuffer(content, ">i4", 3, 4)
    return np.frombuffer(content, np.uint8, offset=16).reshape(count, height * width)


def labels(name: str) -> np.ndarray | None:
    """The class of each row of the base, where the set has any."""
    data = environment.data_folder()
    path = None if data is None else data / name / "train-labels-idx1-ubyte.gz"
    if path is None or not path.exists():
        return None
    content = gzip.decompress(path.read_bytes())
    if content[:4] != b"\0\0\x08\x01":
        raise SetError(f"{path} is no idx file of labels")
    return np.frombuffer(content, np.uint8, offset=8)


def load(name: str, rows: int = 0) -> tuple[np.ndarray, np.ndarray, dict]:
    """Base [n x d], queries [q x d] and a description of any set, by its name; of one that is made
    here, so many rows at least.

    Throws SetError where the set is a real one that is not on this machine.
    """
    if name == "centroids":  # rows to assign vectors to, as k-means does
        base, queries, about = load("uint8")
        return base[:4096].copy(), queries, {**about, "set": name}
    if name in MADE:
        about = obtain(name, max(rows, MADE[name].rows))
        folder = Path(about["folder"])
        base, queries = (read(folder / about[part]["file"]) for part in ("base", "queries"))
        return base, queries, about
    data = environment.data_folder()
    files = {
        "fashion-mnist": ("train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz"),
        "glove-twitter-25": ("base.npy", "queries.npy"),
        "bge-bible": ("base.npy", "queries.npy"),
        "sift-5k": ("base.bvecs", "queries.bvecs"),
    }
    if name not in files:
        raise SetError(f"no set '{name}'; there are {', '.join([*MADE, *files])}")
    if data is None:
        raise SetError(f"{name} is a real set, looked for in $KNEAR_DATA and in ../shared/data")
    paths = [data / name / file for file in files[name]]
    for path in paths:
        if not path.exists():
            raise SetError(f"{name}: no file {path}")
    base, queries = ((_idx if p.suffix == ".gz" else read)(p) for p in paths)
    return base, queries, {"set": name, "sha256": [sha256(path) for path in paths]}
