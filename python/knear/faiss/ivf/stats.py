"""What searches of inverted lists did: indexIVF_stats, which all indexes count in."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base import Sealed


class IndexIVFStats(Sealed):
    """What searches of inverted lists did since reset(): FAISS's indexIVF_stats."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.nq = self.nlist = self.ndis = self.nheap_updates = 0
        self.quantization_time = self.search_time = 0.0

    def add(self, other: IndexIVFStats) -> None:
        """Counts what another one has counted, too."""
        for name, value in vars(other).items():
            if not name.startswith("_"):
                setattr(self, name, getattr(self, name) + value)


indexIVF_stats = IndexIVFStats()


def _add(**counts: int) -> None:
    own = indexIVF_stats.__dict__  # past the check of types, which takes longer than the sum
    for name, more in counts.items():
        own[name] += more


def count(x: NDArray[np.float32], probes: int) -> None:
    _add(nq=len(x), nlist=len(x) * probes)


def count_pairs(pairs: float) -> None:
    """Of queries and rows that were compared."""
    _add(ndis=round(pairs))


def count_rows(report: dict[str, Any], queries: int) -> None:
    """Those of a search by knear: as many of the rows in its lists as are allowed of all."""
    allowed = report["allowed_rows"] / max(1, report["rows"])
    indexIVF_stats.ndis += round(report["probed_rows"] * queries * allowed)
