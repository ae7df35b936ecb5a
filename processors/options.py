"""The options of a view, WITH (…), and the names that a view and its columns may have."""

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass

from processors.binding import nearest
from processors.spans import SpanError, span_us
from processors.syntax import Option, Place

NAME_CHARACTERS_MAX = 40  # PostgreSQL cuts names at 63 bytes, and ours gain endings
RESERVED = ("generation", "revision", "closed", "live", "mark_partition", "mark_offset", "window_start", "window_end")
GENERATION_MAX = 2**31 - 1  # an Avro int
LATENESS_US_MAX = 7 * 86_400_000_000  # panes stay in memory that long
EMIT_EVERY_US_MIN, EMIT_EVERY_US_MAX = 1_000, 60_000_000


@dataclass(frozen=True)
class Options:
    """What stands in WITH (…)."""

    lateness_us: int = 600_000_000  # how long a closed window can still be corrected in place
    emit_every_us: int = 250_000  # at the latest, changed rows are published after this time
    generation: int = 1  # counts the definitions of a view


BOUNDS_US = {"lateness": (0, LATENESS_US_MAX), "emit_every": (EMIT_EVERY_US_MIN, EMIT_EVERY_US_MAX)}


def read_options(place: Place, options: Iterable[Option]) -> Options:
    found: dict[str, int] = {}
    for option in options:
        if option.name in found:
            raise place.refusal(option.at, f"the option {option.name} stands twice", "keep one")
        if option.name == "generation":
            if not isinstance(option.value, int) or not 1 <= option.value <= GENERATION_MAX:
                raise place.refusal(option.at, f"generation cannot be {option.value!r}", f"use 1 to {GENERATION_MAX}")
            found[option.name] = option.value
        elif option.name in BOUNDS_US:
            found[option.name] = _span(place, option)
        else:
            known = nearest(option.name, [*BOUNDS_US, "generation"])
            raise place.refusal(option.at, f"unknown option {option.name}", known)
    defaults = Options()
    return Options(
        lateness_us=found.get("lateness", defaults.lateness_us),
        emit_every_us=found.get("emit_every", defaults.emit_every_us),
        generation=found.get("generation", defaults.generation),
    )


def _span(place: Place, option: Option) -> int:
    least, most = BOUNDS_US[option.name]
    try:
        us = span_us(str(option.value))
    except SpanError as error:
        raise place.refusal(option.at, f"{option.name}: {error}", f"write {option.name} = '1 second'") from None
    if not least <= us <= most:
        raise place.refusal(option.at, f"{option.name} cannot be {us} µs", f"use {least} to {most} microseconds")
    return us


def check_name(place: Place, at: int, name: str, what: str, taken: Container[str]) -> None:
    """Refuse a name that cannot be a topic's, a table's and a column's."""
    if not re.fullmatch(r"[a-z_][a-z0-9_]*", name) or len(name) > NAME_CHARACTERS_MAX:
        remedy = f"use a-z, 0-9 and _, at most {NAME_CHARACTERS_MAX} characters"
        raise place.refusal(at, f"{name!r} is no name of a {what}", remedy)
    if name in taken:
        raise place.refusal(at, f"the {what} has the name of the stream {name}", "give it another")
    if what == "column" and name in RESERVED:
        raise place.refusal(at, f"the column name {name} is taken by the engine", "give it another name with AS")
