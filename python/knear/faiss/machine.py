"""What FAISS says of the machine and of its build: SIMDConfig, threads, swig_version()."""

from __future__ import annotations

import time

from .._process import cores, resident_bytes
from .base import refuse, set_threads, threads

(
    SIMDLevel_NONE,
    SIMDLevel_AVX2,
    SIMDLevel_AVX512,
    SIMDLevel_AVX512_SPR,
    SIMDLevel_ARM_NEON,
    SIMDLevel_ARM_SVE,
    SIMDLevel_RISCV_RVV,
    SIMDLevel_AVX512_VPOPCNT,
    SIMDLevel_COUNT,
) = range(9)


class SIMDConfig:
    """FAISS's choice of instructions, of which there is one here, SIMDLevel_NONE: knear takes the
    fastest that the processor has, and finds the same with all of them."""

    level = SIMDLevel_NONE

    @staticmethod
    def is_simd_level_available(level: int) -> bool:
        return level == SIMDLevel_NONE

    @staticmethod
    def supported_simd_levels() -> int:
        """One bit for each level."""
        return 1 << SIMDLevel_NONE

    @staticmethod
    def get_level() -> int:
        return SIMDLevel_NONE

    get_dispatched_level = auto_detect_simd_level = get_level

    @staticmethod
    def get_level_name() -> str:
        return "NONE"

    @staticmethod
    def has_dynamic_dispatch() -> bool:
        return False

    @staticmethod
    def set_level(level: int) -> None:
        if level != SIMDLevel_NONE:
            refuse(f"SIMD level {level} is not available: knear chooses instructions by itself")


def swig_version() -> int:
    """0: there is no SWIG."""
    return 0


def check_openmp() -> bool:
    """Whether calls take as many threads as omp_set_num_threads() said."""
    return True


def omp_get_max_threads() -> int:
    return threads() or cores()


def omp_set_num_threads(num_threads: int) -> None:
    """How many threads each call from now on takes. Answers do not depend on it."""
    set_threads(num_threads)


def supported_instruction_sets() -> set[str]:
    """What the processor has, by NumPy's names. knear chooses by itself."""
    try:
        from numpy._core._multiarray_umath import __cpu_features__
    except ImportError:  # NumPy before 2
        from numpy.core._multiarray_umath import __cpu_features__
    return {name for name, there in __cpu_features__.items() if there}


instruction_sets = supported_instruction_sets()
has_AVX2 = "AVX2" in instruction_sets
has_AVX512 = "AVX512F" in instruction_sets
has_AVX512_SPR = "AVX512_SPR" in instruction_sets
has_SVE = "SVE" in instruction_sets


def gpu_sync_all_devices() -> None:
    """Nothing: get_num_gpus() is 0."""


gpu_profiler_start = gpu_profiler_stop = gpu_sync_all_devices


def get_num_gpus() -> int:
    return 0


def get_compile_options() -> str:
    return "KNEAR"


def get_mem_usage_kb() -> int:
    """Of this process; where the system does not say, the most that it had."""
    return resident_bytes() // 1024


def getmillisecs() -> float:
    return time.perf_counter() * 1000
