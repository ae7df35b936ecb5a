"""Checks the log of `offsets_worker.py`: all processed, nothing committed too early, no new owner after a hole."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Findings:
    """What a run did, and what it did wrong."""

    processed: dict[int, set[int]] = field(default_factory=dict)  # by partition
    owners: int = 0
    commits: int = 0
    redelivered: int = 0
    idle: int = 0
    violations: list[str] = field(default_factory=list)


def check(path: Path) -> Findings:
    found = Findings()
    reached: dict[tuple[str, int], int] = {}  # (writer, partition) -> taken in up to here
    begun: dict[tuple[str, int], int] = {}
    safe: dict[int, int] = {}  # partition -> everything below is acknowledged
    for line in path.read_text().splitlines():
        step, writer, number, *words = line.split()
        p, owner = int(number), (writer, int(number))
        values = [int(word) for word in words if word != "-"]
        done = found.processed.setdefault(p, set())
        if step == "R":
            position, durable = values
            found.owners += 1
            begun[owner] = reached[owner] = position
            if position > safe.get(p, 0):
                found.violations.append(f"begins above what is acknowledged ({safe.get(p, 0)}): {line}")
            if position > durable:
                found.violations.append(f"begins above what is in the log: {line}")
        elif step == "T":
            if values[0] != reached[owner]:
                found.violations.append(f"jumps from {reached[owner]}: {line}")
            reached[owner] = values[1]
            if values[2]:
                numbers = range(values[3], values[4] + 1)
                found.redelivered += len(done.intersection(numbers))
                done.update(numbers)
        elif step == "A":
            if begun[owner] <= safe.get(p, 0):
                safe[p] = max(safe.get(p, 0), values[0])
        elif step == "C":
            found.commits += 1
            if values[0] > safe.get(p, 0):
                found.violations.append(f"commits above what is acknowledged ({safe.get(p, 0)}): {line}")
        elif step == "I":
            found.idle += 1
    return found
