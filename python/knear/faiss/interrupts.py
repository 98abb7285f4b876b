"""Ending long calls: TimeoutGuard, TimeoutCallback. k-means and searches ask from time to time, and
end in a RuntimeError."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

_now: list[InterruptCallback] = []  # the one that is asked, if any


class InterruptCallback:
    """want_interrupt() says whether what runs shall end; of a class of one's own, once
    InterruptCallback.set_instance() has an object of it."""

    def want_interrupt(self) -> bool:
        raise NotImplementedError

    @staticmethod
    def set_instance(callback: InterruptCallback) -> None:
        _now[:] = [callback]

    @staticmethod
    def clear_instance() -> None:
        _now.clear()

    @staticmethod
    def is_interrupted() -> bool:
        return bool(_now) and _now[0].want_interrupt()

    @staticmethod
    def check() -> None:
        """RuntimeError if what runs shall end."""
        if InterruptCallback.is_interrupted():
            raise RuntimeError("computation interrupted")

    @staticmethod
    def get_period_hint(flops: int) -> int:
        """How many steps of so many operations to make between two questions."""
        return max(1, 100_000_000 // max(1, int(flops)))


class PythonInterruptCallback(InterruptCallback):
    """None of its own: Control-C is Python's."""

    def want_interrupt(self) -> bool:
        return False

    @staticmethod
    def reset() -> None:
        InterruptCallback.clear_instance()


class TimeoutCallback(InterruptCallback):
    """Ends calls once so many seconds are over."""

    def __init__(self) -> None:
        self.set_timeout(0.0)

    def set_timeout(self, timeout_in_seconds: float) -> None:
        self.timeout, self.start = float(timeout_in_seconds), time.perf_counter()

    def want_interrupt(self) -> bool:
        return self.timeout > 0 and time.perf_counter() - self.start > self.timeout

    @staticmethod
    def reset(timeout_in_seconds: float) -> None:
        """From now on."""
        callback = TimeoutCallback()
        callback.set_timeout(timeout_in_seconds)
        InterruptCallback.set_instance(callback)


class TimeoutGuard:
    """with TimeoutGuard(seconds): what is called inside ends by then."""

    def __init__(self, timeout_in_seconds: float) -> None:
        self.timeout = timeout_in_seconds

    def __enter__(self) -> None:
        TimeoutCallback.reset(self.timeout)

    def __exit__(self, *error: Any) -> None:
        InterruptCallback.clear_instance()


def interruptions() -> Callable[[str, float], None] | None:
    """What knear's calls take as progress=: None where nothing can end them."""
    return (lambda stage, share: InterruptCallback.check()) if _now else None
