"""What `verbose` prints, and warnings."""

from __future__ import annotations

import sys
import warnings


def say(verbose: bool, text: str) -> None:
    """Prints a line where it was asked for."""
    if verbose:
        print(text, flush=True)


def warn(text: str) -> None:
    """A warning of the line that called knear."""
    frame, depth = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("knear."):
        frame, depth = frame.f_back, depth + 1
    warnings.warn(text, UserWarning, stacklevel=depth)
