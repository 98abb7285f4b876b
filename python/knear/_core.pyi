"""The compiled part; knear/_arrays.py checks its arguments."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

version: str
has_cuda: bool

Progress = Callable[[str, float], Any] | None

class SearchSettings:
    def __init__(
        self,
        threads: int,
        memory: int,
        device: str,
        first_pass: str,
        choices: str,
        method: str,
        recall: float | None,
        samples: int,
        logical_rows: int,
        aggregate: bool,
        probes: int,
        widen: bool,
        certify: bool,
        refine_factor: int,
        ef: int,
        traffic: str,
    ) -> None: ...

class SearchReport:
    def as_dict(self) -> dict[str, Any]: ...

class FewRowsReport:
    def as_dict(self) -> dict[str, Any]: ...

def knn(
    queries: NDArray[Any],
    queries_type: str,
    base: NDArray[Any],
    base_type: str,
    k: int,
    metric: str,
    settings: SearchSettings,
    filter_ids: NDArray[np.int64] | None,
    filter_bits: NDArray[np.uint64] | None,
    out: tuple[NDArray[np.float32], NDArray[np.int64]] | None,
    progress: Progress,
) -> tuple[NDArray[np.float32], NDArray[np.int64], SearchReport]: ...
def read_dlpack(
    capsule: Any,
) -> tuple[Any, int, tuple[int, int], tuple[int, int, int], tuple[int, ...], tuple[int, ...]]: ...
def device_at(address: int) -> int: ...
def wait_for_stream(number: int, stream: int) -> None: ...
def knn_on_device(
    queries: tuple[int, str, int, int],
    base: tuple[int, str, int, int],
    number: int,
    k: int,
    metric: str,
    settings: SearchSettings,
    filter_ids: NDArray[np.int64] | None,
    filter_bits: NDArray[np.uint64] | None,
    progress: Progress,
) -> tuple[tuple[int, Any], tuple[int, Any], SearchReport]: ...
def check_device(device: str) -> None: ...
def search_on_device(
    index: Index,
    queries: tuple[int, str, int, int],
    number: int,
    k: int,
    settings: SearchSettings,
    filter_ids: NDArray[np.int64] | None,
    filter_bits: NDArray[np.uint64] | None,
    bit_count: int,
    progress: Progress,
) -> tuple[tuple[int, Any], tuple[int, Any], SearchReport]: ...
def self_join_on_device(
    base: tuple[int, str, int, int],
    number: int,
    k: int,
    metric: str,
    settings: SearchSettings,
    filter_ids: NDArray[np.int64] | None,
    filter_bits: NDArray[np.uint64] | None,
    progress: Progress,
) -> tuple[tuple[int, Any], tuple[int, Any], SearchReport]: ...
def range_search_on_device(
    queries: tuple[int, str, int, int],
    base: tuple[int, str, int, int],
    number: int,
    radius: float,
    metric: str,
    settings: SearchSettings,
    filter_ids: NDArray[np.int64] | None,
    filter_bits: NDArray[np.uint64] | None,
    progress: Progress,
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64], SearchReport]: ...
def select_on_device(
    x: tuple[int, int, int, int],
    number: int,
    k: int,
    largest: bool,
    sorted: bool,
    lengths: NDArray[np.int64] | None,
    one_row: bool,
) -> tuple[tuple[int, Any], tuple[int, Any]]: ...
def copy_from_device(number: int, address: int, pitch: int, out: NDArray[np.uint8]) -> None: ...
def copy_to_device(number: int, array: NDArray[Any]) -> tuple[int, Any]: ...
def self_join(
    base: NDArray[Any],
    base_type: str,
    k: int,
    metric: str,
    settings: SearchSettings,
    filter_ids: NDArray[np.int64] | None,
    filter_bits: NDArray[np.uint64] | None,
    out: tuple[NDArray[np.float32], NDArray[np.int64]] | None,
    progress: Progress,
) -> tuple[NDArray[np.float32], NDArray[np.int64], SearchReport]: ...
def range_search(
    queries: NDArray[Any],
    queries_type: str,
    base: NDArray[Any],
    base_type: str,
    radius: float,
    metric: str,
    settings: SearchSettings,
    filter_ids: NDArray[np.int64] | None,
    filter_bits: NDArray[np.uint64] | None,
    progress: Progress,
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64], SearchReport]: ...
def select_k(
    x: NDArray[Any],
    x_type: str,
    k: int,
    largest: bool,
    sorted: bool,
    lengths: NDArray[np.int64] | None,
    threads: int,
    method: str,
    progress: Progress = None,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]: ...
def k_means(
    rows: NDArray[Any],
    type: str,
    count: int,
    metric: str,
    iterations: int,
    seed: int,
    seeding: str,
    restarts: int,
    tolerance: float,
    rows_per_centroid: int,
    levels: int,
    threads: int,
    initial: NDArray[np.float32] | None,
    frozen_rows: int,
    weights: NDArray[np.float32] | None,
    progress: Progress,
    step: Callable[[int, int, float, int, int, float, int], Any] | None = None,
    device: str = "cpu",
) -> tuple[NDArray[np.float32], list[tuple[int, int, float, int, int, float, int]]]: ...
def check_float32_tells_apart(rows: NDArray[Any], type: str, argument: str, made: str) -> None: ...
def nearest_centroids(
    centroids: NDArray[np.float32],
    rows: NDArray[Any],
    type: str,
    metric: str,
    threads: int,
    progress: Progress = None,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]: ...

class Transform:
    @staticmethod
    def pca(
        rows: NDArray[Any],
        type: str,
        components: int,
        whiten: bool,
        rotate: bool,
        balance_over: int,
        most_rows: int,
        seed: int,
        threads: int,
        progress: Progress,
    ) -> Transform: ...
    @staticmethod
    def opq(
        rows: NDArray[Any],
        type: str,
        sub_quantizers: int,
        bits: int,
        dim_out: int,
        iterations: int,
        seed: int,
        most_rows: int,
        threads: int,
        progress: Progress,
    ) -> Transform: ...
    @staticmethod
    def rotation(dim_in: int, dim_out: int, seed: int) -> Transform: ...
    @staticmethod
    def centring(rows: NDArray[Any], type: str, threads: int) -> Transform: ...
    @staticmethod
    def unit_norm(dim: int) -> Transform: ...
    @staticmethod
    def shift(offset: NDArray[np.float32]) -> Transform: ...
    @staticmethod
    def linear(matrix: NDArray[np.float32], offset: NDArray[np.float32]) -> Transform: ...
    @staticmethod
    def chain(transforms: list[Transform]) -> Transform: ...
    @property
    def dim_in(self) -> int: ...
    @property
    def dim_out(self) -> int: ...
    @property
    def keeps_distances(self) -> bool: ...
    def steps(self) -> list[tuple[Any, ...]]: ...
    def apply(
        self, rows: NDArray[Any], type: str, threads: int, progress: Progress = None
    ) -> NDArray[np.float32]: ...
    def inverse(
        self, rows: NDArray[Any], type: str, threads: int, progress: Progress = None
    ) -> NDArray[np.float32]: ...

class ProductQuantizer:
    @staticmethod
    def train(
        rows: NDArray[Any],
        type: str,
        sub_quantizers: int,
        bits: int,
        iterations: int,
        seed: int,
        most_rows: int,
        threads: int,
        progress: Progress,
    ) -> ProductQuantizer: ...
    @staticmethod
    def from_centroids(
        centroids: NDArray[np.float32], sub_quantizers: int, bits: int
    ) -> ProductQuantizer: ...
    @property
    def centroids(self) -> NDArray[np.float32]: ...
    def tables(
        self, queries: NDArray[Any], type: str, metric: str, threads: int
    ) -> NDArray[np.float32]: ...
    @property
    def dim(self) -> int: ...
    @property
    def code_size(self) -> int: ...
    def encode(
        self, rows: NDArray[Any], type: str, threads: int, progress: Progress = None
    ) -> NDArray[np.uint8]: ...
    def decode(self, codes: NDArray[np.uint8], threads: int) -> NDArray[np.float32]: ...
    def distances(
        self,
        queries: NDArray[Any],
        type: str,
        codes: NDArray[np.uint8],
        metric: str,
        threads: int,
    ) -> NDArray[np.float32]: ...
    def code_distances(
        self,
        from_codes: NDArray[np.uint8],
        to_codes: NDArray[np.uint8],
        metric: str,
        threads: int,
    ) -> NDArray[np.float32]: ...

def trained_index(
    dim: int,
    metric: str,
    centroids: NDArray[np.float32] | None,
    kind: str,
    parts: int,
    bits: int,
    residual: bool,
    numbers: NDArray[np.float32],
) -> Index: ...

class PlainSearch:
    def __init__(
        self,
        kind: str,
        metric: str,
        dim: int,
        like: Index | None,
        low: NDArray[np.float32],
        span: NDArray[np.float32],
        centroids: NDArray[np.float32] | None,
        coarse: NDArray[np.float32] | None,
    ) -> None: ...
    def nearest(
        self,
        rows: NDArray[np.uint8],
        list_of: NDArray[np.int64] | None,
        by_list: NDArray[np.int64] | None,
        begin: NDArray[np.int64] | None,
        allowed: NDArray[np.bool_] | None,
        queries: NDArray[np.float32],
        probes: NDArray[np.int64] | None,
        nearest_lists: int,
        k: int,
        threads: int,
    ) -> tuple[NDArray[np.float32], NDArray[np.int64], int] | None: ...

def rows_by_list(
    list_of: NDArray[np.int64], lists: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]: ...

class PlainCode:
    def __init__(
        self, kind: str, dim: int, low: NDArray[np.float32], span: NDArray[np.float32]
    ) -> None: ...
    def encode(
        self,
        rows: NDArray[np.float32],
        centroids: NDArray[np.float32] | None,
        lists: NDArray[np.int64] | None,
        threads: int,
        out: NDArray[np.uint8],
    ) -> int: ...

class ScalarQuantizer:
    @staticmethod
    def train(rows: NDArray[Any], type: str, code: str, threads: int) -> ScalarQuantizer: ...
    @staticmethod
    def from_levels(
        code: str, low: NDArray[np.float32], step: NDArray[np.float32]
    ) -> ScalarQuantizer: ...
    @staticmethod
    def of_halves(code: str, dim: int) -> ScalarQuantizer: ...
    @property
    def low(self) -> NDArray[np.float32]: ...
    @property
    def step(self) -> NDArray[np.float32]: ...
    @property
    def dim(self) -> int: ...
    @property
    def code_size(self) -> int: ...
    def encode(
        self, rows: NDArray[Any], type: str, threads: int, progress: Progress = None
    ) -> NDArray[np.uint8]: ...
    def decode(self, codes: NDArray[np.uint8], threads: int) -> NDArray[np.float32]: ...
    def distances(
        self,
        queries: NDArray[Any],
        type: str,
        codes: NDArray[np.uint8],
        metric: str,
        threads: int,
    ) -> NDArray[np.float32]: ...
    def code_distances(
        self,
        from_codes: NDArray[np.uint8],
        to_codes: NDArray[np.uint8],
        metric: str,
        threads: int,
    ) -> NDArray[np.float32]: ...

def read_vectors(
    path: bytes, type: str, begin: int, end: int, dataset: str, progress: Progress
) -> tuple[NDArray[Any], str]: ...
def name_of_faiss(letters: str) -> str: ...
def read_ids(path: bytes, progress: Progress) -> NDArray[np.int64]: ...
def write_vectors(path: bytes, vectors: NDArray[Any], type: str, progress: Progress) -> None: ...
def write_ids(path: bytes, ids: NDArray[np.int64], progress: Progress) -> None: ...
def roofline(threads: int, seconds: float) -> dict[str, Any]: ...
def choose_index(
    rows: int,
    dim: int,
    metric: str,
    type: str,
    memory: int,
    recall: float,
    batch: int,
    sample: NDArray[Any] | None,
    threads: int,
    progress: Progress,
) -> tuple[str, str, int, bool, list[tuple[str, float, float, int]]]: ...

class Index:
    def __init__(
        self, factory: str, dim: int, metric: str, shards: int = 1, replicas: int = 1
    ) -> None: ...
    def train(
        self,
        vectors: NDArray[Any],
        type: str,
        iterations: int,
        rows: int,
        hold_out: bool,
        seed: int,
        threads: int,
        progress: Progress,
    ) -> None: ...
    def add(
        self,
        vectors: NDArray[Any],
        type: str,
        ids: NDArray[np.int64] | None,
        threads: int,
        progress: Progress,
    ) -> None: ...
    def remove(self, ids: NDArray[np.int64]) -> None: ...
    def replace(
        self,
        ids: NDArray[np.int64],
        vectors: NDArray[Any],
        type: str,
        progress: Progress = None,
    ) -> None: ...
    def compact(self) -> None: ...
    @property
    def audit(self) -> float: ...
    def set_audit(self, share: float) -> None: ...
    def audits(self) -> list[dict[str, Any]]: ...
    def optimize(self, threads: int, progress: Progress) -> int: ...
    def tune(
        self,
        k: int,
        queries: NDArray[Any] | None,
        type: str,
        base: NDArray[Any] | None,
        base_type: str,
        ids: NDArray[np.int64] | None,
        threads: int,
        progress: Progress,
    ) -> list[tuple[float, float, float, float]]: ...
    def reserve(self, rows: int) -> None: ...
    def reconstruct(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.uint8], str]: ...
    def ids(self) -> NDArray[np.int64]: ...
    def list_sizes(self) -> NDArray[np.int64]: ...
    def lists_of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]: ...
    def contains(self, id: int) -> bool: ...
    def save(self, path: bytes, progress: Progress) -> None: ...
    def search(
        self,
        queries: NDArray[Any],
        queries_type: str,
        k: int,
        settings: SearchSettings,
        filter_ids: NDArray[np.int64] | None,
        filter_bits: NDArray[np.uint64] | None,
        bit_count: int,
        out: tuple[NDArray[np.float32], NDArray[np.int64]] | None,
        progress: Progress,
    ) -> tuple[NDArray[np.float32], NDArray[np.int64], SearchReport]: ...
    def range_search(
        self,
        queries: NDArray[Any],
        queries_type: str,
        radius: float,
        settings: SearchSettings,
        filter_ids: NDArray[np.int64] | None,
        filter_bits: NDArray[np.uint64] | None,
        bit_count: int,
        progress: Progress,
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64], SearchReport]: ...
    def memory_bytes(self) -> int: ...
    @property
    def dim(self) -> int: ...
    @property
    def factory(self) -> str: ...
    @property
    def is_trained(self) -> bool: ...
    @property
    def keeps_vectors(self) -> bool: ...
    @property
    def lists(self) -> int: ...
    @property
    def shards(self) -> int: ...
    @property
    def replicas(self) -> int: ...
    def shard_sizes(self) -> NDArray[np.int64]: ...
    def missing_shards(self) -> list[str]: ...
    def centroids(self) -> NDArray[np.float32]: ...
    def write_faiss(self, path: bytes, progress: Progress) -> None: ...
    @property
    def metric(self) -> str: ...
    @property
    def next_id(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def element_type(self) -> str: ...
    def merge(self, other: Index, keep_ids: bool) -> None: ...
    def add_to_lists(
        self, rows: NDArray[Any], type: str, lists: NDArray[np.int64] | None, threads: int
    ) -> None: ...
    def search_lists(
        self,
        queries: NDArray[Any],
        type: str,
        lists: NDArray[np.int64],
        k: int,
        settings: SearchSettings,
        filter_ids: NDArray[np.int64] | None,
        filter_bits: NDArray[np.uint64] | None,
        bit_count: int,
        progress: Progress,
    ) -> tuple[NDArray[np.float32], NDArray[np.int64], SearchReport]: ...
    @staticmethod
    def load(
        path: bytes,
        replicas: int = 0,
        allow_partial: bool = False,
        progress: Progress = None,
    ) -> Index: ...

def has_nan(x: NDArray[np.float32]) -> bool: ...
def set_result_types(array: Any, empty: Any, float32: Any, int64: Any, result: Any) -> None: ...
def usual_search(
    index: Index,
    q: object | None,
    k: object | None,
    probes: object | None,
    recall: object | None,
    threads: object | None,
    refine_factor: object | None,
    ef: object | None,
    widen: object | None,
    certify: object | None,
    filter: object | None,
    memory: object | None,
    device: object | None,
    usual_device: object | None,
    out: object | None,
    progress: object | None,
    report: object | None,
) -> Any: ...
def search_part(
    index: Index,
    queries: NDArray[Any],
    queries_type: str,
    k: int,
    settings: SearchSettings,
    progress: Progress,
) -> tuple[tuple[NDArray[np.float64], NDArray[np.int64]], SearchReport]: ...
def merge_parts(
    parts: list[tuple[NDArray[np.float64], NDArray[np.int64]]], k: int, threads: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]: ...
def round_part(
    keys: NDArray[np.float64], ids: NDArray[np.int64], metric: str, k: int, threads: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]: ...

class Graph:
    @property
    def ids(self) -> NDArray[np.int64]: ...
    @property
    def distances(self) -> NDArray[np.float32]: ...
    @property
    def metric(self) -> str: ...
    @property
    def dim(self) -> int: ...
    @property
    def promised_recall(self) -> float: ...
    @property
    def recall_argument(self) -> str: ...
    @property
    def distinct(self) -> bool: ...
    @property
    def base(self) -> tuple[int, int, str, int]: ...
    def refine(
        self,
        base: NDArray[Any],
        type: str,
        recall: float | None,
        seed: int,
        threads: int,
        memory: int,
        progress: Progress = None,
    ) -> tuple[Graph, dict[str, Any]]: ...
    def save(self, path: bytes, progress: Progress = None) -> None: ...
    def check_base(self, base: NDArray[Any], type: str) -> None: ...
    def statistics(self, hubs: int) -> dict[str, Any]: ...
    def accuracy(
        self,
        base: NDArray[Any],
        type: str,
        sample: int,
        seed: int,
        threads: int,
        progress: Progress = None,
    ) -> tuple[float, float, float]: ...

class PathFinder:
    def __init__(
        self,
        begin: NDArray[np.int64],
        ids: NDArray[np.int64],
        distances: NDArray[np.float32],
        metric: str,
        threads: int,
    ) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def component_count(self) -> int: ...
    def connected(self, start: int, end: int) -> bool: ...
    def largest_step(self, start: int, end: int) -> float: ...
    def path(self, start: int, end: int) -> tuple[NDArray[np.int64], float, float]: ...

def knn_graph(
    base: NDArray[Any],
    type: str,
    k: int,
    metric: str,
    recall: float,
    distinct: bool,
    threads: int,
    memory: int,
    progress: Progress = None,
) -> tuple[Graph, dict[str, Any]]: ...
def build_graph_file(
    base: NDArray[Any],
    type: str,
    k: int,
    path: bytes,
    metric: str,
    recall: float,
    distinct: bool,
    threads: int,
    memory: int,
    resume: bool,
    progress: Progress = None,
) -> dict[str, Any]: ...
def load_graph(path: bytes, progress: Progress = None) -> Graph: ...
def refined_graph(
    ids: NDArray[np.int64],
    base: NDArray[Any],
    type: str,
    metric: str,
    recall: float | None,
    seed: int,
    threads: int,
    memory: int,
    progress: Progress = None,
) -> tuple[Graph, dict[str, Any]]: ...
def restored_graph(
    ids: NDArray[np.int64],
    distances: NDArray[np.float32],
    metric: str,
    promised_recall: float,
    recall_argument: str,
    distinct: bool,
    base: tuple[int, int, str, int],
) -> Graph: ...
def symmetric(
    ids: NDArray[np.int64],
    distances: NDArray[np.float32],
    metric: str,
    closure: str,
    threads: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]: ...
def bridged(
    base: NDArray[Any],
    type: str,
    begin: NDArray[np.int64],
    ids: NDArray[np.int64],
    distances: NDArray[np.float32],
    metric: str,
    threads: int,
    progress: Progress = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]: ...
