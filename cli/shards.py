"""Splits the tests that need no server over the cores, and makes one summary of several. Pure."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|deselected|xfailed|xpassed|warnings?)")
ORDER = ("failed", "error", "passed", "skipped", "deselected", "xfailed", "xpassed", "warning")
PLURAL = {"error": "errors", "warning": "warnings"}


def shards(bytes_by_file: Mapping[str, int], count: int) -> list[list[str]]:
    """Files of about equal size in all: what is long to read is mostly long to run. The same every time."""
    made: list[list[str]] = [[] for _ in range(count)]
    loads = [0] * count
    for file, size in sorted(bytes_by_file.items(), key=lambda item: (-item[1], item[0])):
        lightest = loads.index(min(loads))
        made[lightest].append(file)
        loads[lightest] += size
    return [sorted(files) for files in made if files]


def summary(lines: Sequence[str]) -> str:
    """Pytest's last lines as one: the counts added. A line without counts is kept as it is."""
    if len(lines) == 1:
        return lines[0]
    counts: Counter[str] = Counter()
    others = []
    for line in lines:
        found = COUNT.findall(line)
        counts.update({word.removesuffix("s") if word in PLURAL.values() else word: int(n) for n, word in found})
        others += [] if found else [line]
    told = [f"{counts[word]} {PLURAL.get(word, word) if counts[word] > 1 else word}" for word in ORDER if counts[word]]
    return ", ".join([*told, *others])
