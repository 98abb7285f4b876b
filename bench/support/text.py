"""Real text: the descriptions of Debian's packages, and an embedding of 256 floats for each.

    packages = records(cache, long=True)
    titles(packages)      # ('gnuplot', 'gnuplot-x11: Command-line driven interactive plotting ...')
    paragraphs(packages)  # the same of the long descriptions
    Embedding()(["draw graphs of functions"])  # [1 x 256] f32, of length one

A vector is the mean of the vectors of a text's tokens, scaled to length one, so that l2, ip and
cosine give the same order. The 32,000 token vectors and the tokenizer are files of the Python
package wordllama; none of its code is run.

The texts come from apt: `apt-cache dumpavail` has the titles, the lists 'Translation-en' the long
descriptions. Where this machine lacks a list, it is downloaded into the cache, not into the
system. KNEAR_ARCHIVE names a file to use instead: the output of `apt-cache dumpavail`, and after it
lists 'Translation-en' if paragraphs are needed.
"""

import dataclasses
import hashlib
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

PACKAGES = ("tokenizers", "safetensors", "wordllama")  # of Python
DIM = 256
VECTORS = "wordllama/weights/l2_supercat_256.safetensors"
TOKENIZER = "wordllama/tokenizers/l2_supercat_tokenizer_config.json"

# Shorter paragraphs are headings ('Features:'), longer ones lists of names.
SHORTEST, LONGEST = 40, 2_000
# Texts per block: the vectors of their tokens, about 20 KiB a text, then fit into a cache.
BLOCK = 64


class TextError(Exception):
    """Texts or vectors that cannot be had, in one line."""


@dataclasses.dataclass(frozen=True)
class Record:
    package: str
    title: str
    paragraphs: tuple[str, ...] = ()
    source: str = ""  # the source package, if it has another name


def archive_file() -> Path | None:
    """The file that KNEAR_ARCHIVE names; None where the texts come from apt."""
    name = os.environ.get("KNEAR_ARCHIVE")
    return Path(name) if name else None


def archive_suffix() -> str:
    """What the folder of a set made from KNEAR_ARCHIVE ends with: a digest of the file."""
    file = archive_file()
    if file is None:
        return ""
    try:
        return "-" + hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    except OSError as error:
        raise TextError(f"KNEAR_ARCHIVE is {file}, which cannot be read: {error}") from error


def one_line(text: str) -> str:
    return " ".join(text.split())


def parse(lines: Iterable[str]) -> Iterator[Record]:
    """The records of a list of packages or of a list 'Translation-en', in the order of the file."""
    package, source, title, body, described = "", "", "", [], False
    for line in lines:
        if line.startswith(" "):
            if described:
                body.append(line)
            continue
        described = False
        name, _, value = line.partition(":")
        if name == "Package":
            package = value.strip()
        elif name == "Source":
            source = value.split()[0] if value.strip() else ""  # without a version
        elif name in ("Description", "Description-en"):
            title, described = one_line(value), True
        elif not line.strip():
            if package and title:
                yield Record(package, title, split_paragraphs(body), source)
            package, source, title, body = "", "", "", []
    if package and title:
        yield Record(package, title, split_paragraphs(body), source)


def split_paragraphs(lines: list[str]) -> tuple[str, ...]:
    """The paragraphs of a long description, whose lines begin with a blank; ' .' divides them."""
    out, current = [], []
    for line in [*lines, " ."]:
        if line.strip() == ".":
            if current:
                out.append(one_line(" ".join(current)))
            current = []
        else:
            current.append(line)
    return tuple(text for text in out if SHORTEST <= len(text) <= LONGEST)


def run(*command: str) -> str:
    """The output of a program of apt. Throws TextError where it is missing or fails."""
    try:
        done = subprocess.run(command, check=False, capture_output=True, encoding="utf-8")
    except OSError as error:
        raise TextError(
            f"no '{command[0]}' on this machine: the texts are Debian's; KNEAR_ARCHIVE can name a "
            "file with the output of 'apt-cache dumpavail' on another machine"
        ) from error
    if done.returncode != 0:
        last = " ".join(done.stderr.strip().splitlines()[-1:])
        raise TextError(f"'{Path(command[0]).name} {command[-1]}' failed: {last}")
    return done.stdout


def own_lists(cache: Path) -> list[str]:
    """Downloads apt's lists into the cache, with long descriptions. Returns options for apt."""
    folder = cache / "apt"
    (folder / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    options = {
        "Dir::State::lists": folder / "lists",
        "Dir::Cache": folder,
        "Acquire::Languages": "en",
        "Acquire::Retries": "3",
        "APT::Sandbox::User": "",  # apt's own user may not write here
        "Debug::NoLocking": "1",
        "APT::Update::Error-Mode": "any",  # a list that cannot be had is an error, not a warning
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    print("text: downloading apt's lists of packages, 16 MB", file=sys.stderr, flush=True)
    try:
        run("apt-get", "-q", *words, "update")
    except TextError as error:
        raise TextError(
            f"apt's lists of packages are needed, and a network for them: {error}"
        ) from error
    return words


def translations(options: list[str]) -> list[str]:
    """The lists 'Translation-en' that apt has."""
    kind = ("Created-By: Translations", "Language: en")
    names = run("apt-get", "indextargets", *options, "--format", "$(FILENAME)", *kind)
    return sorted(name for name in names.splitlines() if Path(name).exists())


def records(cache: Path, long: bool) -> list[Record]:
    """Every package of the archive once, by name; `long` with the paragraphs of its description."""
    if file := archive_file():
        try:
            packages = by_name(parse(file.read_text(encoding="utf-8").split("\n")))
        except (OSError, UnicodeDecodeError) as error:
            raise TextError(f"KNEAR_ARCHIVE is {file}, which cannot be read: {error}") from error
        if not packages:
            raise TextError(f"KNEAR_ARCHIVE is {file}, which has no package with a description")
        return packages
    options: list[str] = []
    dump = "" if long and not translations([]) else run("apt-cache", "dumpavail")
    if not dump.strip():
        options = own_lists(cache)
        dump = run("apt-cache", *options, "dumpavail")
    packages = by_name(parse(dump.split("\n")))
    if not packages:
        raise TextError("'apt-cache dumpavail' names no package with a description")
    if not long:
        return packages
    names = {record.package for record in packages}
    for name in translations(options):
        described = parse(run("/usr/lib/apt/apt-helper", "cat-file", name).split("\n"))
        packages = by_name([*packages, *(each for each in described if each.package in names)])
    return packages


def by_name(records: Iterable[Record]) -> list[Record]:
    """One record for each package, in the order of their names.

    Its title is that of the package's first record, its paragraphs those of the first that has any.
    """
    merged: dict[str, Record] = {}
    for record in records:
        known = merged.setdefault(record.package, record)
        if not known.paragraphs:
            merged[record.package] = dataclasses.replace(known, paragraphs=record.paragraphs)
    return [merged[name] for name in sorted(merged)]


def titles(packages: list[Record]) -> list[tuple[str, str]]:
    """Source package and text of each title: 'package: short description'."""
    return [
        (record.source or record.package, f"{record.package}: {record.title}")
        for record in packages
    ]


def paragraphs(packages: list[Record]) -> list[tuple[str, str]]:
    """Source package and text of each paragraph: 'package: paragraph'.

    A paragraph that several packages share comes once, with the name of the first.
    """
    out, seen = [], set()
    for record in packages:
        for text in record.paragraphs:
            if text not in seen:
                seen.add(text)
                out.append((record.source or record.package, f"{record.package}: {text}"))
    return out


def choose(
    texts: list[tuple[str, str]], rows: int, queries: int, seed: int
) -> tuple[list[str], list[str]]:
    """Up to `rows` texts for the base, and `queries` texts of other source packages.

    Packages of one source (gnuplot-x11, gnuplot-doc) have nearly the same texts, so that a query
    would find its copies. Sources are drawn for the queries until they have enough texts. The
    order of both parts is drawn too, by `seed`. Throws TextError where no text remains for a base.
    """
    random = np.random.Generator(np.random.PCG64([seed, 2]))
    of_source: dict[str, list[str]] = {}
    for source, text in texts:
        of_source.setdefault(source, []).append(text)
    groups = list(of_source.values())
    held_out: list[str] = []
    rest: list[str] = []
    for i in random.permutation(len(groups)):
        (held_out if len(held_out) < queries else rest).extend(groups[i])
    if len(held_out) < queries or not rest:
        raise TextError(
            f"the archive has {len(texts):,} texts, too few for {queries:,} queries and a base"
        )

    def draw(part: list[str], count: int) -> list[str]:
        return [part[i] for i in random.permutation(len(part))[:count]]

    return draw(rest, rows), draw(held_out, queries)


class Embedding:
    """Texts to vectors. Reads wordllama's two files, in a tenth of a second."""

    def __init__(self) -> None:
        try:
            from safetensors.numpy import load_file
            from tokenizers import Tokenizer

            package = importlib.metadata.distribution("wordllama")
        except (ImportError, importlib.metadata.PackageNotFoundError) as error:
            raise TextError(f"{error}; scripts/setup --text installs what is needed") from error
        self.version = package.version
        files = [Path(str(package.locate_file(name))) for name in (VECTORS, TOKENIZER)]
        for file in files:
            if not file.exists():
                raise TextError(f"wordllama {self.version} has no file {file}")
        (vectors,) = load_file(files[0]).values()
        if vectors.ndim != 2 or vectors.shape[1] != DIM:
            raise TextError(f"{files[0]} has shape {vectors.shape}, not [tokens x {DIM}]")
        self.vectors = vectors.astype(np.float32)
        self.sha256 = hashlib.sha256(files[0].read_bytes()).hexdigest()
        self.tokenizer = Tokenizer.from_file(str(files[1]))
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()

    def __call__(self, texts: list[str]) -> np.ndarray:
        """[n x 256] f32, each of length one. Throws TextError for a text without a token."""
        out = np.empty((len(texts), DIM), np.float32)
        for begin in range(0, len(texts), BLOCK):
            block = texts[begin : begin + BLOCK]
            encodings = self.tokenizer.encode_batch_fast(block, add_special_tokens=False)
            counts = np.array([len(encoding.ids) for encoding in encodings])
            if not counts.all():
                raise TextError(f"'{block[int(counts.argmin())]}' has no word, and so no vector")
            tokens = np.concatenate([encoding.ids for encoding in encodings])
            sums = np.add.reduceat(self.vectors[tokens], np.cumsum(counts) - counts, axis=0)
            lengths = np.sqrt(np.square(sums, dtype=np.float64).sum(axis=1, keepdims=True))
            out[begin : begin + BLOCK] = sums / lengths
        return out


def make(rows: int, queries: int, seed: int, cache: Path) -> tuple[np.ndarray, np.ndarray, dict]:
    """Base [up to rows x 256], queries [queries x 256], f32, and a description.

    The texts are titles alone where these suffice for rows and queries, else titles and paragraphs.
    """
    embedding = Embedding()
    packages = records(cache, long=False)
    texts = titles(packages)
    if len(texts) < rows + queries:
        packages = records(cache, long=True)
        texts = titles(packages) + paragraphs(packages)
    base, held_out = choose(texts, rows, queries, seed)
    every = "".join(text + "\n" for _, text in texts)
    about = {
        "rows that were asked for": rows,
        "packages of the archive": len(packages),
        "texts of the archive": len(texts),
        "sha256 of these texts": hashlib.sha256(every.encode()).hexdigest(),
        "wordllama": embedding.version,
        "sha256 of the word vectors": embedding.sha256,
        "texts": {"base": base, "queries": held_out},
    }
    return embedding(base), embedding(held_out), about
