"""What the tests share: a plain reference to compare with, and the real vectors."""

import gzip
import importlib
import os
from pathlib import Path

import numpy as np
import pytest
from pretended_arrays import pretended  # noqa: F401, a fixture

pytest.register_assert_rewrite("faiss_pair")  # its assertions say what they compared


def brute_force(queries, base, k, metric):
    """(distances, ids) [q x k] in float64, by the definitions and a full sort; ties by id."""
    q, b = np.asarray(queries, np.float64), np.asarray(base, np.float64)
    if metric == "l2":
        key = ((q[:, None, :] - b[None, :, :]) ** 2).sum(2)
    else:
        key = -(q @ b.T)
        if metric == "cosine":
            lengths = np.sqrt((q**2).sum(1)[:, None] * (b**2).sum(1)[None, :])
            with np.errstate(invalid="ignore", divide="ignore"):
                key = np.where(lengths > 0, 1 + key / lengths, 1.0)
    ids = np.argsort(key, axis=1, kind="stable")[:, :k]
    distances = np.take_along_axis(key, ids, 1)
    if metric == "ip":
        distances = -distances
    missing = k - ids.shape[1]
    if missing > 0:
        far = -np.inf if metric == "ip" else np.inf
        ids = np.pad(ids, ((0, 0), (0, missing)), constant_values=-1)
        distances = np.pad(distances, ((0, 0), (0, missing)), constant_values=far)
    return distances.astype(np.float32), ids


@pytest.fixture
def rng():
    return np.random.default_rng(20240607)


@pytest.fixture(scope="module")
def rows():
    """Vectors in clusters [3000 x 12], for the tests of knear.faiss and of FAISS's files."""
    rng = np.random.default_rng(1)
    centres = rng.standard_normal((40, 12))
    picked = centres[rng.integers(0, 40, 3000)]
    return (picked + 0.3 * rng.standard_normal((3000, 12))).astype(np.float32)


@pytest.fixture(params=["knear", "faiss"])
def faiss(request):
    """knear.faiss and the real FAISS: what holds of ours has to hold of FAISS (faiss_pair.py)."""
    if request.param == "knear":
        return importlib.import_module("knear.faiss")
    return pytest.importorskip("faiss")


@pytest.fixture(scope="session")
def data_folder():
    """The folder of real vectors; skips the test where there is none."""
    root = Path(__file__).resolve().parents[2]
    for folder in (os.environ.get("KNEAR_DATA"), root.parent / "shared" / "data"):
        if folder and Path(folder).is_dir():
            return Path(folder)
    return pytest.skip("no real vectors: neither $KNEAR_DATA nor ../shared/data exists")


@pytest.fixture(scope="session")
def fashion_mnist(data_folder):
    """(base, queries) of Fashion-MNIST: [60000 x 784] and [10000 x 784] u8."""
    both = []
    for part in ("train", "t10k"):
        file = data_folder / "fashion-mnist" / f"{part}-images-idx3-ubyte.gz"
        if not file.exists():
            pytest.skip(f"no {file}")
        both.append(np.frombuffer(gzip.decompress(file.read_bytes()), np.uint8, offset=16))
    return tuple(images.reshape(-1, 784) for images in both)
