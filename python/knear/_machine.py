"""What this machine can do: knear.roofline."""

from typing import Any

from . import _arrays, _core


def roofline(threads: int = 0, *, seconds: float = 3.0) -> dict[str, Any]:
    """Measures the peak rates of this machine, which bound every search, for about `seconds`.

    >>> import knear
    >>> rates = knear.roofline(seconds=0.05)
    >>> rates["fp32_flops"] > rates["cycles_per_second"] > 0
    True

    A dict of "fp32_flops", "bf16_flops", "int16_ops", "int8_ops" (operations per second, a
    multiply-add being two; None where the machine has no such instructions),
    "memory_bytes_per_second", "cop_per_second" (compare, select, add), "cycles_per_second" (of the
    cores, together), and "threads", "isa", "processor". It is not stored: `knear roofline` of the
    command line does that, for the cost model to plan by.

    Ctrl-C stops it within half a second.

    threads: how many run together; 0 for all that the process may use.

    Raises InvalidArgument unless 0 < seconds <= 600.
    """
    return _core.roofline(_arrays.integer("threads", threads), _arrays.number("seconds", seconds))
