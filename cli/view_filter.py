"""Whether a view counts every reading: only then its counts can be held against the raw table without its SQL."""

import re
from pathlib import Path

FILTERS = re.compile(r"\b(WHERE|HAVING|FILTER|JOIN)\b", re.IGNORECASE)
COUNTS_ALL = re.compile(r"\bcount\s*\(\s*\*\s*\)\s+AS\s+count\b", re.IGNORECASE)
COMMENTS = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)


def counts_every_reading(file: Path) -> bool:
    try:
        text = COMMENTS.sub(" ", file.read_text())
    except OSError:
        return False  # a view of another installation: its SQL is not here
    return bool(COUNTS_ALL.search(text)) and not FILTERS.search(text)
