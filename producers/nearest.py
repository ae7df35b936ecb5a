"""Which known name somebody may have meant: for messages about names that are not known."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """Say which of the known names is nearest, or, if none is near, which there are."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, 1, 0.5)
    return f"the nearest is {near[0]}" if near else f"there are {', '.join(known)}"
