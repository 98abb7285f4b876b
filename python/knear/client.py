"""A client of `knear serve`: knear.Client. Pure Python; vectors and answers travel as bytes."""

from __future__ import annotations

import json
import select
import struct
import threading
import urllib.parse
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _arrays
from ._sealed import Sealed
from .errors import Error, InvalidArgument, IoError, MemoryBudgetError

_BINARY = "application/octet-stream"


class ClientError(Error):
    """What a server of `knear serve` refused; `status` is that of HTTP. It is InvalidArgument,
    MemoryBudgetError or IoError too, by what the caller can do about it.

    >>> from knear.client import ClientError
    >>> ClientError("the token is needed", 401).status
    401
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class _Refused(ClientError, InvalidArgument):
    """400, 403, 404, 409, 413 and the like: another request is needed."""


class _Busy(ClientError, MemoryBudgetError):
    """503: the same request may be answered later."""


class _Failed(ClientError, IoError):
    """401, 504, 500 and whatever else comes back."""


class ClientResult(NamedTuple):
    """(distances, ids, certified): [q x k] float32 and int64, nearest first, and [q] bool."""

    distances: NDArray[np.float32]
    ids: NDArray[np.int64]
    certified: NDArray[np.bool_]


class Client(Sealed):
    """An index of a server that `knear serve` runs.

    >>> import knear
    >>> client = knear.Client("http://127.0.0.1:8080", "base")   # nothing is sent yet
    >>> client.url, client.index
    ('http://127.0.0.1:8080', 'base')

    With a server, client.search(queries, k=10) is (distances, ids, certified); client.add(vectors),
    client.remove(ids) and client.replace(ids, vectors) return once the change is on disk.

    url: "http://HOST:PORT", of a server or of what stands before it; https:// too.
    index: the name of the index there; None: the only one that it serves.
    token: the line in its --token-file.
    timeout: seconds to wait for an answer.

    Vectors are sent as float32, of any layout and type. One connection stays open for each thread
    that calls, and is opened again where the server has closed it; a request that the server did
    not take because it closed the connection at that moment is sent again, if it changes nothing.

    Errors are knear.Error: InvalidArgument for what the server refuses (4xx but for 401),
    MemoryBudgetError where it has too much to do now (503), IoError for all else; those of an
    answer have `status`.
    """

    url: str
    index: str | None

    def __init__(
        self,
        url: str,
        index: str | None = None,
        *,
        token: str | None = None,
        timeout: float = 60.0,
    ) -> None:
        parts = urllib.parse.urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        plain = parts.path in ("", "/") and not parts.query and not parts.fragment
        if parts.scheme not in ("http", "https") or not parts.hostname or not plain or port == -1:
            raise InvalidArgument(f"url must be like http://127.0.0.1:8080, but is {url!r}")
        self.url = url.rstrip("/")
        self.index = index
        self._host, self._port, self._scheme = parts.hostname, port, parts.scheme
        self._token, self._timeout = token, timeout
        self._links = threading.local()

    def __repr__(self) -> str:
        return f"<knear.Client {self.url}, index {self.index!r}>"

    def search(
        self,
        queries: ArrayLike,
        k: int = 10,
        *,
        recall: float | None = None,
        probes: int | None = None,
        filter: ArrayLike | None = None,
        certify: bool = False,
        traffic: str | None = None,
        timeout_ms: int | None = None,
    ) -> ClientResult:
        """The k nearest rows of each query [q x dim]: (distances, ids, certified), as of
        knear.Index.search; places without a neighbour hold the id -1 and infinity.

        >>> import knear
        >>> found = knear.Client("http://127.0.0.1:8080").search(queries, k=10)  # doctest: +SKIP
        >>> found.ids.shape                                                      # doctest: +SKIP
        (5, 10)

        recall, probes, filter (ids), certify, traffic: as of knear.Index.search.
        timeout_ms: a search that has not ended by then ends in an error with the status 504.
        """
        rows = _matrix("queries", queries)
        few = _ids("filter", filter) if filter is not None else np.empty(0, np.int64)
        flags = int(bool(certify)) | (2 if filter is not None else 0)
        name_of_traffic = b""
        if traffic is not None:
            name_of_traffic = _arrays.text("traffic", traffic).encode()
            if len(name_of_traffic) > 64:
                raise InvalidArgument(
                    f"traffic must have at most 64 bytes, but has {len(name_of_traffic)}"
                )
            name_of_traffic, flags = name_of_traffic.ljust(64, b"\0"), flags | 4
        for name, value in ("k", k), ("probes", probes), ("timeout_ms", timeout_ms):
            if value is not None and not 1 <= _arrays.integer(name, value) < 2**63:
                raise InvalidArgument(f"{name} must be at least 1, but is {value}")
        if recall is not None and not 0 < recall <= 1:
            raise InvalidArgument(f"recall must be in (0, 1], but is {recall}")
        head = struct.pack(
            "<4sIQQQdQQQQ",
            b"KNSQ",
            1,
            *rows.shape,
            k,
            recall or 0.0,
            probes or 0,
            timeout_ms or 0,
            flags,
            len(few),
        )
        body = self._changed(
            "search", head + name_of_traffic + few.tobytes() + rows.tobytes(), again=True
        )
        magic, _, count, width = struct.unpack_from("<4sIQQ", body.ljust(24))
        places = count * width
        if magic != b"KNSA" or len(body) != 24 + 12 * places + count:
            raise _Failed("the answer is not one of knear serve", 200)
        ids = np.frombuffer(body, "<i8", places, 24).reshape(count, width)
        distances = np.frombuffer(body, "<f4", places, 24 + 8 * places).reshape(count, width)
        certified = np.frombuffer(body, np.uint8, count, 24 + 12 * places).astype(bool)
        return ClientResult(distances.copy(), ids.copy(), certified)

    def add(self, vectors: ArrayLike, ids: ArrayLike | None = None) -> NDArray[np.int64]:
        """Adds `vectors` [n x dim] and returns their ids [n], once they are on the server's disk:
        `ids`, or those that come next.

        >>> import knear
        >>> client = knear.Client("http://127.0.0.1:8080")
        >>> client.add([[0.0, 1.0]], ids=[7])          # doctest: +SKIP
        array([7])

        An id that is there already is InvalidArgument (409), and nothing is added.
        """
        body = self._changed("add", self._vectors(vectors, ids))
        return np.frombuffer(body, "<i8", -1, 16).copy()

    def replace(self, ids: ArrayLike, vectors: ArrayLike) -> None:
        """Gives the rows with these `ids` [n] other `vectors` [n x dim].

        >>> import knear
        >>> client = knear.Client("http://127.0.0.1:8080")
        >>> client.replace([7], [[2.0, 1.0]])          # doctest: +SKIP

        An id that is not there is InvalidArgument (404), and nothing is replaced.
        """
        self._changed("replace", self._vectors(vectors, ids))

    def remove(self, ids: ArrayLike) -> int:
        """Takes rows out and returns how many of these `ids` were there.

        >>> import knear
        >>> client = knear.Client("http://127.0.0.1:8080")
        >>> client.remove([7, 8])                      # doctest: +SKIP
        1
        """
        body = json.dumps({"ids": _ids("ids", ids).tolist()}).encode()
        return json.loads(self._changed("remove", body, kind="application/json"))["removed"]

    def about(self) -> dict[str, Any]:
        """What the server says of the index: "rows", "dim", "metric", "kind", "last_search", ...

        >>> import knear
        >>> knear.Client("http://127.0.0.1:8080").about()["rows"]    # doctest: +SKIP
        1000000
        """
        return json.loads(self._ask("GET", f"/indexes/{self._name()}", again=True))

    def indexes(self) -> list[str]:
        """The names of all indexes of the server.

        >>> import knear
        >>> knear.Client("http://127.0.0.1:8080").indexes()          # doctest: +SKIP
        ['base']
        """
        told = json.loads(self._ask("GET", "/indexes", again=True))
        return [each["name"] for each in told["indexes"]]

    def health(self) -> bool:
        """Whether the server answers.

        >>> import knear
        >>> knear.Client("http://127.0.0.1:9", timeout=5).health()
        False
        """
        try:
            return json.loads(self._ask("GET", "/health", again=True))["status"] == "ok"
        except Error:
            return False

    def close(self) -> None:
        """Closes the connection of this thread; the next call opens another.

        >>> import knear
        >>> knear.Client("http://127.0.0.1:8080").close()
        """
        link = getattr(self._links, "link", None)
        if link is not None:
            link.close()
            self._links.link = None

    def _vectors(self, vectors: ArrayLike, ids: ArrayLike | None) -> bytes:
        rows = _matrix("vectors", vectors)
        own = b"" if ids is None else _ids("ids", ids).tobytes()
        if ids is not None and len(own) != 8 * len(rows):
            raise InvalidArgument(f"there are {len(own) // 8} ids for {len(rows)} vectors")
        flags = int(ids is not None)
        return struct.pack("<4sIQQQ", b"KNVQ", 1, *rows.shape, flags) + own + rows.tobytes()

    def _name(self) -> str:
        if self.index is None:
            names = self.indexes()
            if len(names) != 1:
                raise InvalidArgument(f"index must be one of {', '.join(names)}, but is None")
            self.index = names[0]
        return urllib.parse.quote(self.index, safe="")

    def _changed(
        self, action: str, body: bytes, *, kind: str = _BINARY, again: bool = False
    ) -> bytes:
        return self._ask("POST", f"/indexes/{self._name()}/{action}", body, kind, again)

    def _ask(
        self, method: str, path: str, body: bytes | None = None, kind: str = "", again: bool = False
    ) -> bytes:
        import http.client  # takes as long as all else here, and not everybody has a server

        headers = {"Content-Type": kind} if body is not None else {}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        link = getattr(self._links, "link", None)
        if link is not None and _was_closed(link):
            self.close()
            link = None
        fresh = link is None
        if link is None:
            secure = self._scheme == "https"
            of = http.client.HTTPSConnection if secure else http.client.HTTPConnection
            link = self._links.link = of(self._host, self._port, timeout=self._timeout)
        try:
            link.request(method, path, body, headers)
            answer = link.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            closed = isinstance(error, (ConnectionError, http.client.RemoteDisconnected))
            if again and closed and not fresh:
                return self._ask(method, path, body, kind)
            raise IoError(f"{self.url} does not answer: {error or type(error).__name__}") from None
        if answer.status == 200:
            return content
        try:
            message = json.loads(content)["error"]
        except (ValueError, KeyError, TypeError):
            message = f"{self.url} answered {answer.status}"
        kind_of: dict[int, type[ClientError]] = {503: _Busy}
        for status in (400, 403, 404, 405, 409, 413, 414, 415, 417, 431):
            kind_of[status] = _Refused
        raise kind_of.get(answer.status, _Failed)(message, answer.status)


def _was_closed(link: Any) -> bool:
    """Whether the server has closed a connection that lay idle: there is something to read."""
    if link.sock is None:
        return True
    poll = select.poll()
    poll.register(link.sock, select.POLLIN)
    return bool(poll.poll(0))


def _matrix(name: str, value: ArrayLike) -> NDArray[np.float32]:
    rows = np.ascontiguousarray(value, dtype="<f4")
    if rows.ndim != 2:
        raise InvalidArgument(f"{name} must have 2 dimensions, but has {np.ndim(value)}")
    return rows


def _ids(name: str, value: ArrayLike) -> NDArray[np.int64]:
    ids = np.asarray(value)
    if ids.size == 0:
        ids = ids.astype(np.int64)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise InvalidArgument(f"{name} must be a list of whole numbers")
    return ids.astype("<i8")
