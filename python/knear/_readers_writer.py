"""A lock that many readers share, or one writer has alone."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet

from .errors import InvalidArgument


class ReadersWriter:
    """Any number of threads in reading(), or one in writing().

    Who comes while a writer waits is served after it, so that readers who never pause do not keep
    it waiting for ever. A thread that reads may read again inside, writer or not. Writing inside
    reading would wait for itself: it is an InvalidArgument.

    fork() copies the calling thread alone: in the child process the other threads neither read nor
    write.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = 0
        self._writing: int | None = None  # the thread that does
        self._waiting = 0  # writers
        self._mine = threading.local()  # how often this thread reads
        _all.add(self)

    def _after_fork(self) -> None:
        self._changed = threading.Condition()
        self._readers = int(getattr(self._mine, "depth", 0) > 0)
        self._waiting = 0
        if self._writing != threading.get_ident():
            self._writing = None

    @contextmanager
    def reading(self) -> Iterator[None]:
        depth = getattr(self._mine, "depth", 0)
        if depth == 0:
            with self._changed:
                self._changed.wait_for(lambda: self._writing is None and not self._waiting)
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
                self._changed.wait_for(lambda: self._writing is None and not self._readers)
                self._writing = threading.get_ident()
            finally:
                self._waiting -= 1
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._writing = None
                self._changed.notify_all()


_all: WeakSet[ReadersWriter] = WeakSet()


def _after_fork() -> None:
    for each in list(_all):
        each._after_fork()


os.register_at_fork(after_in_child=_after_fork)
