"""knear: the k nearest neighbours of dense vectors, exactly.

    distances, ids = knear.knn(queries, base, k=10)              # one shot

    index = knear.Index("Flat", dim=128, metric="l2")            # prepared once, searched often
    index.add(base)
    distances, ids = index.search(queries, k=10)

Arrays are NumPy matrices [n x dim] of float64, float32, float16, uint8, int8 or
ml_dtypes.bfloat16, and anything that numpy.asarray makes one of. They are read in place, without a
copy, if each row is contiguous (the rows may lie apart); other layouts are copied once. int64 and
other numbers are taken if float32 holds every value exactly, else refused. float64 is measured as
it is, within the range of float32; float32 needs half the memory.

Arrays may also be in the memory of an NVIDIA GPU, where knear was built with CUDA: those with
`__dlpack_device__` (torch, CuPy, JAX) or `__cuda_array_interface__` (Numba). Functions read them
there, without a copy; an Index copies them to the processor. Answers are new arrays on the same
GPU, of the library of the first argument, or knear.DeviceArray where that is none of these three
(ids of JAX have 32 bits unless jax_enable_x64 is set). The work is ordered after that which made
the arrays, as their protocol says: DLPack names the producer's current stream, the interface a
stream of its own. Answers are complete when the call returns, for any stream. Lists of ids, filters
and lengths may be on a GPU anywhere; the processor gets a copy.

Metrics: "l2", squared Euclidean distances; "ip", inner products, largest first; "cosine",
1 - cos. Equal distances are ordered by id. Places beyond the number of rows hold the id -1 and
the distance +inf (-inf for "ip").

"Exactly" means: the k smallest by the distance computed in float64 in a fixed order, ties by id,
and that distance rounded to float32; the same bits for any number of threads and any machine.

Every function may be called from several threads; the interpreter lock is released during the
work (not for the few microseconds of one query among few rows), and Ctrl-C stops it (but for
roofline(), and for waiting while another thread changes the same index). After os.fork(), the child
may go on calling them.
"""

from . import _core
from ._choice import FormForecast, IndexChoice, choose_index
from ._clustering import KMeans
from ._device import DeviceArray
from ._files import read_vectors, write_vectors
from ._graphs import (
    KnnGraph,
    PathFinder,
    SmoothPath,
    build_graph,
    knn_graph,
    read_graph,
    refine_graph,
    smoothest_path,
)
from ._index import Index, load
from ._machine import roofline
from ._options import SearchOptions
from ._parts import PartResult, merge_parts
from ._quantizers import OPQ, PCA, ProductQuantizer, ScalarQuantizer
from ._results import RangeResult, SearchResult
from ._search import knn, range_search, select_k, self_join
from .client import Client
from .errors import (
    Cancelled,
    CorruptFile,
    DeviceUnavailable,
    Error,
    InvalidArgument,
    IoError,
    MemoryBudgetError,
    ShapeMismatch,
)

__version__: str = _core.version
__all__ = [
    "Cancelled",
    "Client",
    "CorruptFile",
    "DeviceArray",
    "DeviceUnavailable",
    "Error",
    "FormForecast",
    "Index",
    "IndexChoice",
    "InvalidArgument",
    "IoError",
    "KMeans",
    "KnnGraph",
    "MemoryBudgetError",
    "OPQ",
    "PCA",
    "PartResult",
    "PathFinder",
    "ProductQuantizer",
    "RangeResult",
    "ScalarQuantizer",
    "SearchOptions",
    "SearchResult",
    "ShapeMismatch",
    "SmoothPath",
    "build_graph",
    "choose_index",
    "knn",
    "knn_graph",
    "load",
    "merge_parts",
    "range_search",
    "read_graph",
    "read_vectors",
    "refine_graph",
    "roofline",
    "select_k",
    "self_join",
    "smoothest_path",
    "write_vectors",
]
