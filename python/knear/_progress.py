"""How far a long call is: `progress=` of those that take long."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .errors import InvalidArgument

Progress = bool | Callable[[str, float], Any] | None


def reporting(progress: Any, call: Callable[..., Any], *words: Any) -> Any:
    """call(*words, callback), where `callback` is what _core tells how far it is."""
    if progress is None:
        return call(*words, None)
    with told(progress) as tell:
        return call(*words, tell)


@contextmanager
def told(progress: Any) -> Iterator[Any]:
    """The callback(stage, share) of `progress`, or None.

    `progress`: None or False for nothing, a function, or True for a bar drawn by tqdm.
    """
    if progress is None or progress is False:
        yield None
    elif progress is True:
        yield from _bar()
    elif callable(progress):
        yield progress
    else:
        raise InvalidArgument(
            f"progress must be True, or a function of the stage and the share done, but is "
            f"{progress!r}"
        )


class Bar:
    """What a bar of tqdm shows."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def __call__(self, stage: str, share: float) -> None:
        if self._bar.desc != f"{stage}: ":
            self._bar.reset()
            self._bar.set_description(stage, refresh=False)
        self._bar.n = round(100 * share)
        self._bar.refresh()

    def note(self, text: str) -> None:
        """Shows it behind the time, from the next call on."""
        self._bar.postfix = text


def _bar() -> Iterator[Bar]:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise InvalidArgument(
            "progress is True, which draws with the package tqdm, but that is not installed; a "
            "function of the stage and the share done may be given instead"
        ) from None
    shape = "{desc}{percentage:3.0f}%|{bar}| {elapsed}{postfix}"
    with tqdm(total=100, unit="%", bar_format=shape) as bar:
        yield Bar(bar)
        bar.n = 100
        bar.refresh()
