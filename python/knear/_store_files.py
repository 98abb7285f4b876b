"""The folder of a store of documents: written whole or not at all, and believed nothing.

    store.json              the manifest: settings, and which two files are the store
    index-TOKEN.knear       the vectors; none where there are none yet
    documents-TOKEN.jsonl   a document a line: {"key": ..., "id": ..., "text": ..., "metadata": ...}

save() writes the two files under names that no other save uses, then puts a new manifest in the
place of the old one, which is what makes the store another. Cut off before that, it leaves files
that nothing names: the next save removes them. load() checks the documents against the sum and
number in the manifest, and their keys against the ids of the index, which has sums of its own.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from . import _arrays
from ._index import Index
from ._regular import regular
from .errors import CorruptFile, Error, InvalidArgument, _io_error

_MANIFEST = "store.json"
_FORMAT = "knear store of documents, version 1"
_PART = re.compile(r"(index-[0-9a-f]{32}\.knear|documents-[0-9a-f]{32}\.jsonl)")

# What a manifest holds beside its format, with the types that are taken.
_NONE = type(None)
_SETTINGS = {
    "factory": (str,),
    "metric": (str,),
    "recall": (float, int, _NONE),
    "probes": (int, _NONE),
    "rows": (int, _NONE),  # of "auto", until it has chosen
}
_PARTS = {"index": (str, _NONE), "documents": (str,), "count": (int,), "sha256": (str,)}

Row = tuple[int, str, str, dict[str, Any]]  # key, id, text, metadata


def save(
    folder: str | os.PathLike[str],
    settings: dict[str, Any],
    index: Index | None,
    rows: Iterable[Row],
) -> None:
    """Writes a store. Raises InvalidArgument for metadata that JSON does not hold; IoError."""
    folder = os.fsdecode(_arrays.path(folder))
    with _io_errors(folder):
        os.makedirs(folder, exist_ok=True)
        with _alone(folder):
            token = uuid.uuid4().hex
            written = [f"documents-{token}.jsonl", f"index-{token}.knear"]
            try:
                count, digest = _write_documents(os.path.join(folder, written[0]), rows)
                if index is not None:
                    index.save(os.path.join(folder, written[1]))
                manifest = {
                    "format": _FORMAT,
                    **settings,
                    "index": None if index is None else written[1],
                    "documents": written[0],
                    "count": count,
                    "sha256": digest,
                }
                _replace(folder, json.dumps(manifest, indent=1))
            except BaseException:
                if not _names(folder, token):
                    _remove(folder, written)
                raise
            parts = {name for name in os.listdir(folder) if _PART.fullmatch(name)}
            _remove(folder, parts - set(written))


def load(folder: str | os.PathLike[str]) -> tuple[dict[str, Any], Index | None, list[Row]]:
    """(settings, index, rows) of a store. Raises IoError; CorruptFile."""
    folder = os.fsdecode(_arrays.path(folder))
    with _io_errors(folder):
        while True:
            manifest = _manifest(folder)
            try:
                return _load(folder, manifest)
            except (OSError, Error):
                # A save at the same time removes the files of the manifest that it replaces.
                if _manifest(folder) == manifest:
                    raise


def _load(folder: str, manifest: dict[str, Any]) -> tuple[dict[str, Any], Index | None, list[Row]]:
    path = os.path.join(folder, manifest["documents"])
    with regular(path) as file:
        data = file.read()
    if hashlib.sha256(data).hexdigest() != manifest["sha256"]:
        raise CorruptFile(f"{path}: was cut off or altered: its sum is not that in {_MANIFEST}")
    rows = [_row(path, number, line) for number, line in enumerate(data.splitlines(), 1)]
    keys, names = [row[0] for row in rows], {row[1] for row in rows}
    if not len(rows) == len(names) == manifest["count"]:
        raise CorruptFile(
            f"{path}: has {len(rows)} documents of {len(names)} ids, but {_MANIFEST} says "
            f"{manifest['count']}"
        )
    index = None
    if manifest["index"] is not None:
        index = Index.load(os.path.join(folder, manifest["index"]))
        if index.metric != manifest["metric"]:
            raise CorruptFile(
                f"{folder}: {_MANIFEST} says metric {manifest['metric']}, but the index has "
                f"{index.metric}"
            )
    there = np.empty(0, np.int64) if index is None else index.ids
    if not np.array_equal(np.sort(np.array(keys, np.int64)), there):
        raise CorruptFile(f"{folder}: the documents are not those of the index")
    return {name: manifest[name] for name in _SETTINGS}, index, rows


def _manifest(folder: str) -> dict[str, Any]:
    path = os.path.join(folder, _MANIFEST)
    with regular(path) as file:
        data = file.read()
    value = _json(path, data)
    if not isinstance(value, dict) or value.get("format") != _FORMAT:
        raise CorruptFile(f"{path}: is not the manifest of a {_FORMAT}")
    value.setdefault("rows", None)  # which earlier stores have not
    for name, kinds in {**_SETTINGS, **_PARTS}.items():
        if name not in value or type(value[name]) not in kinds:
            raise CorruptFile(f"{path}: {name} is {value.get(name)!r}")
    if value["metric"] not in ("l2", "ip", "cosine"):
        raise CorruptFile(f"{path}: metric is {value['metric']!r}")
    for name in ("index", "documents"):
        if value[name] is not None and not _PART.fullmatch(value[name]):
            raise CorruptFile(f"{path}: {name} is {value[name]!r}, which no store names a file")
    return value


def _row(path: str, number: int, line: bytes) -> Row:
    value = _json(f"{path}: line {number}", line)
    kinds = {"key": int, "id": str, "text": str, "metadata": dict}
    if not isinstance(value, dict) or {name: type(each) for name, each in value.items()} != kinds:
        raise CorruptFile(f"{path}: line {number} is no document")
    if not 0 <= value["key"] < 2**63:
        raise CorruptFile(f"{path}: line {number} has key {value['key']}")
    return value["key"], value["id"], value["text"], value["metadata"]


def _json(where: str, data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{where}: is no JSON: {error}") from error


def _write_documents(path: str, rows: Iterable[Row]) -> tuple[int, str]:
    """Their number and the sum of the file."""
    count, digest = 0, hashlib.sha256()
    with open(path, "xb") as file:
        for key, name, text, metadata in rows:
            fault = _not_json(metadata, "metadata")
            if fault:
                raise InvalidArgument(f"document {name!r} cannot be saved as JSON: {fault}")
            row = {"key": key, "id": name, "text": text, "metadata": metadata}
            try:
                line = json.dumps(row).encode() + b"\n"  # ASCII, without a line break inside
            except ValueError as error:  # a whole number of thousands of digits
                raise InvalidArgument(
                    f"document {name!r} cannot be saved as JSON: {error}"
                ) from error
            digest.update(line)
            file.write(line)
            count += 1
        file.flush()
        os.fsync(file.fileno())
    return count, digest.hexdigest()


def _not_json(value: Any, where: str, depth: int = 0) -> str | None:
    """What of a value JSON would refuse or give back as something else; tuples are lists."""
    if depth > 100:
        return f"{where} is nested more than 100 deep"
    if value is None or type(value) in (str, int, float, bool):
        return None
    if isinstance(value, (list, tuple)):
        parts = ((f"{where}[{place}]", each) for place, each in enumerate(value))
    elif isinstance(value, dict):
        for name in value:
            if type(name) is not str:
                return f"{where} has the key {name!r}, which is no text"
        parts = ((f"{where}[{name!r}]", each) for name, each in value.items())
    else:
        return f"{where} is a {type(value).__name__}"
    return next(filter(None, (_not_json(each, at, depth + 1) for at, each in parts)), None)


def _replace(folder: str, text: str) -> None:
    """Puts a new manifest in the place of the old one, once what it names is on disk."""
    path = os.path.join(folder, _MANIFEST)
    with _opened(folder) as descriptor:
        with regular(f"{path}.tmp", "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.fsync(descriptor)
        os.replace(f"{path}.tmp", path)
        os.fsync(descriptor)


def _names(folder: str, token: str) -> bool:
    """Whether the manifest is that of this save already."""
    try:
        with regular(os.path.join(folder, _MANIFEST)) as file:
            return token.encode() in file.read()
    except FileNotFoundError:
        return False


def _remove(folder: str, names: Iterable[str]) -> None:
    for name in names:
        with suppress(FileNotFoundError):
            os.remove(os.path.join(folder, name))


@contextmanager
def _opened(folder: str) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _alone(folder: str) -> Iterator[None]:
    """Keeps other saves to this folder waiting, whose files would be taken for leftovers."""
    with _opened(folder) as descriptor:
        with suppress(OSError):  # some file systems of a network have no such locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with suppress(OSError):  # a child process that was forked meanwhile has it open too
                fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextmanager
def _io_errors(folder: str) -> Iterator[None]:
    try:
        yield
    except Error:
        raise
    except OSError as error:
        path = os.fspath(error.filename or folder)
        message = f"{path}: {error.strerror or error}"
        raise _io_error(message, error.errno or 0, path) from error
