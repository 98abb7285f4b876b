"""Inverted lists: IndexIVFFlat, IndexIVFPQ, IndexIVFScalarQuantizer.

    stats.py    what searches did: indexIVF_stats
    lists.py    the lists and the map of ids, to look at
    rows.py     rows in lists: trained, added, removed, reconstructed; no searches
    scans.py    searches of given lists, one list after the other
    index.py    IndexIVF: searches, by knear's own index where it goes to the same lists
    kinds.py    the three, by what a row is kept as

Each imports only those above it.
"""

# ruff: noqa: F401 -- the names are what this module is for
from .index import IndexIVF, IndexIVFInterface, Level1Quantizer
from .kinds import IndexIVFFlat, IndexIVFPQ, IndexIVFScalarQuantizer
from .lists import ArrayInvertedLists, DirectMap, InvertedLists
from .stats import IndexIVFStats, indexIVF_stats
