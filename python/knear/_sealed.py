"""Objects that refuse attributes which they do not have. What a user of another library sets there
would be ignored, and answers would differ without a word."""

from __future__ import annotations

from typing import Any, ClassVar


class Sealed:
    """The base of the classes of knear. Attributes are the annotated ones, properties, and those
    that begin with an underscore; a class that somebody derives may have others."""

    # For names that other libraries have: what to write here instead.
    _elsewhere: ClassVar[dict[str, str]] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._elsewhere or not (
            name.startswith("_")
            or hasattr(type(self), name)
            or not type(self).__module__.startswith("knear.")
            or any(name in vars(each).get("__annotations__", ()) for each in type(self).__mro__)
        ):
            raise AttributeError(self._lacks(name), name=name, obj=self)
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(self._lacks(name), name=name, obj=self)

    def _lacks(self, name: str) -> str:
        hint = f": {self._elsewhere[name]}" if name in self._elsewhere else ""
        return f"knear.{type(self).__name__} has no attribute {name!r}{hint}"
