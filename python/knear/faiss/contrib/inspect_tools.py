"""What is inside of indexes, as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import knear.faiss as faiss


def get_invlist(invlists: Any, l: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:  # noqa: E741
    """(ids [n], codes [n x size]) of a list."""
    codes = invlists.get_codes(l).reshape(-1, invlists.code_size)
    return invlists.get_ids(l).copy(), codes.copy()


def get_invlist_sizes(invlists: Any) -> NDArray[np.int64]:
    """How many rows each list has."""
    return np.array([invlists.list_size(i) for i in range(invlists.nlist)], np.int64)


def get_pq_centroids(pq: Any) -> NDArray[np.float32]:
    """The centroids [M x ksub x dsub] of a product quantizer."""
    return faiss.vector_to_array(pq.centroids).reshape(pq.M, pq.ksub, pq.dsub)


def get_LinearTransform_matrix(pca: Any) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(A [d_out x d_in], b [d_out], or [0] without one) of a linear transform."""
    a = faiss.vector_to_array(pca.A).reshape(pca.d_out, pca.d_in)
    return a, faiss.vector_to_array(pca.b)


def make_LinearTransform_matrix(A: NDArray[Any], b: NDArray[Any] | None = None) -> Any:
    """The transform to A x + b."""
    d_out, d_in = A.shape
    assert b is None or b.shape == (d_out,), f"b is {np.shape(b)}, where {(d_out,)} is due"
    out = faiss.LinearTransform(d_in, d_out, b is not None)
    out.A.set(A)
    if b is not None:
        out.b.set(b)
    out.is_trained = True
    out.set_is_orthonormal()
    return out


def get_flat_data(index: Any) -> NDArray[np.float32]:
    """The vectors [ntotal x d] of an IndexFlat."""
    return get_flat_codes(index).view(np.float32).reshape(index.ntotal, index.d)


def get_flat_codes(index_flat: Any) -> NDArray[np.uint8]:
    """The codes [ntotal x code_size] of an index without lists."""
    codes = faiss.vector_to_array(index_flat.codes)
    return codes.reshape(index_flat.ntotal, index_flat.code_size)


def get_additive_quantizer_codebooks(aq: Any) -> Any:
    raise NotImplementedError("additive quantizers are not there; knear.Index has PQ and SQ codes")


def get_NSG_neighbors(nsg: Any) -> Any:
    raise NotImplementedError(
        "graphs are not there; knear.Index('IVF1024,Flat') with search(recall=0.95) finds as many"
    )
