"""FAISS's lists on disk, which are not there."""

from __future__ import annotations

from typing import Any


def merge_ondisk(
    trained_index: Any, shard_fnames: list[str], ivfdata_fname: str, shift_ids: bool = False
) -> None:
    raise NotImplementedError(
        "lists on disk are not there; read_index() and merge_from() join files, and knear.Index "
        "maps .knear files from disk"
    )
