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
    with _told(progress) as tell:
        return call(*words, tell)


@contextmanager
def _told(progress: Any) -> Iterator[Any]:
    """The callback(stage, share) of `progress`, or None.

    `progress`: False for nothing, a function, or True for a bar drawn by tqdm.
    """
    if progress is False:
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


def _bar() -> Iterator[Callable[[str, float], None]]:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise InvalidArgument(
            "progress is True, which draws with the package tqdm, but that is not installed; a "
            "function of the stage and the share done may be given instead"
        ) from None
    with tqdm(total=100, unit="%", bar_format="{desc}{percentage:3.0f}%|{bar}| {elapsed}") as bar:

        def show(stage: str, share: float) -> None:
            if bar.desc != f"{stage}: ":
                bar.reset()
                bar.set_description(stage, refresh=False)
            bar.n = round(100 * share)
            bar.refresh()

        yield show
        bar.n = 100
        bar.refresh()
