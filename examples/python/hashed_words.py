"""hashed_words.py -- vectors of texts without a model, for the examples beside it.

Each word is hashed to one of DIM columns, or its negative, and counts as much as it is rare among
the words of English: by its length. So texts are near that share long words. It knows nothing of
what words mean; a program of yours calls its model here.
"""

import hashlib
import re

import numpy as np

DIM = 256


def vector_of(text):
    """A vector of length 1 [DIM], the same on every machine; all 0 for a text without words."""
    vector = np.zeros(DIM, np.float32)
    for word in re.findall(r"\w+", text.lower()):
        bits = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
        vector[bits // 2 % DIM] += len(word) * (1 if bits % 2 else -1)
    return vector / max(1.0, float(np.linalg.norm(vector)))
