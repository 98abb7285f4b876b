"""A lock that many readers share, or one writer has alone."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .errors import InvalidArgument


class ReadersWriter:
    """Any number of threads in reading(), or one in writing().

    Who comes while a writer waits is served after it, so that readers who never pause do not keep
    it waiting for ever. A thread that reads may read again inside, writer or not. Writing inside
    reading would wait for itself: it is an InvalidArgument.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = 0
        self._writing = False
        self._waiting = 0  # writers
        self._mine = threading.local()  # how often this thread reads

    @contextmanager
    def reading(self) -> Iterator[None]:
        depth = getattr(self._mine, "depth", 0)
        if depth == 0:
            with self._changed:
                self._changed.wait_for(lambda: not self._writing and not self._waiting)
                self._readers += 1
        self._mine.depth = depth + 1
        try:
            yield
        finally:
            self._mine.depth = depth
            if depth == 0:
                with self._changed:
                    self._readers -= 1
                    self._changed.notify_all()

    @contextmanager
    def writing(self) -> Iterator[None]:
        if getattr(self._mine, "depth", 0):
            raise InvalidArgument("a filter must not change the store that it is a filter of")
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._writing and not self._readers)
                self._writing = True
            finally:
                self._waiting -= 1
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
