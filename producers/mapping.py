"""How a file of measured data becomes readings of a stream: the mapping, read from TOML. Opens no data file.

For example, for a CSV file with a column for each amplitude::

    format = "csv"
    stream = "bpm"
    [fields]
    source        = { value = "crate1" }
    run           = { value = 1 }
    trigger_id    = { column = "shot" }
    time          = { column = "t", unit = "s" }   # since 1970; without a unit: date and time
    instrument_id = { column = "monitor" }
    top_in        = { column = "A" }

Rows that follow each other with the same source, run, trigger and time become one record.
"""

import tomllib
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from producers.nearest import nearest
from schemas.stream import Field, Stream

SHIPPED = Path(__file__).parent / "mappings"
FORMATS = ("hdf5", "csv", "parquet")
UNITS_US = {"s": Fraction(10**6), "ms": Fraction(1000), "us": Fraction(1), "ns": Fraction(1, 1000)}
ORIGINS = ("column", "scalar", "value", "row", "group")  # where a field's values come from: exactly one of them


class MappingError(ValueError):
    """A mapping that cannot be used: file, field, what is wrong and the remedy, in one line."""


@dataclass(frozen=True)
class Origin:
    """Where the values of one field come from."""

    kind: str  # one of ORIGINS
    name: str = ""  # of the column or the dataset of one number
    value: str | int | float | None = None
    unit: str | None = None  # of times: a key of UNITS_US
    step_us: Fraction = Fraction(0)  # of times: added for each row of the file or group


@dataclass(frozen=True)
class Mapping:
    """Origins by field of the stream; a value field without one is null."""

    file: str
    format: str
    stream: str
    groups: str  # HDF5: pattern of the groups that are read, each by itself; empty: the file is one
    assumption: str | None
    origins: dict[str, Origin]


def load_mapping(name: str, stream: Stream) -> Mapping:
    """Read a mapping file, or the shipped mapping of that name."""
    path = Path(name) if Path(name).exists() else SHIPPED / f"{name}.toml"
    if not path.exists():
        shipped = ", ".join(sorted(one.stem for one in SHIPPED.glob("*.toml")))
        raise MappingError(f"mapping {name}: no such file; name a TOML file, or a shipped mapping: {shipped}")
    try:
        parsed = tomllib.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise MappingError(f"{path}: cannot be read as TOML ({error}); correct it") from None
    return build_mapping(parsed, str(path), stream)


def build_mapping(parsed: dict[str, Any], file: str, stream: Stream) -> Mapping:
    for key in parsed:
        if key not in ("format", "stream", "assumption", "hdf5", "fields"):
            raise MappingError(f"{file}: unknown key {key!r}; use format, stream, assumption, [hdf5] and [fields]")
    if parsed.get("format") not in FORMATS:
        raise MappingError(f"{file}: format={parsed.get('format')!r}; write one of {', '.join(FORMATS)}")
    if parsed.get("stream", stream.name) != stream.name:
        raise MappingError(
            f"{file}: is for stream {parsed['stream']}, not {stream.name}; give --stream {parsed['stream']}"
        )
    groups = parsed.get("hdf5", {}).get("groups", "")
    known = fields_of(stream)
    origins = {}
    for name, about in parsed.get("fields", {}).items():
        if name not in known:
            raise MappingError(f"{file}: {name} is no field of stream {stream.name}; {nearest(name, known)}")
        origins[name] = _origin(about, f"{file}: {name}", known[name], grouped=bool(groups))
    for field in known.values():
        optional = field.nullable or field == stream.status
        if field.name not in origins and not optional:
            raise MappingError(f"{file}: says nothing of {field.name}; add it to [fields]: {field.meaning}")
    return Mapping(file, parsed["format"], stream.name, groups, parsed.get("assumption"), origins)


def fields_of(stream: Stream) -> dict[str, Field]:
    """Name every field that a reading of the stream has."""
    fields = [stream.source, stream.run, stream.trigger, stream.time, stream.instrument, *stream.values]
    if stream.status is not None:
        fields.append(stream.status)
    return {field.name: field for field in fields}


def _origin(about: Any, place: str, field: Field, *, grouped: bool) -> Origin:  # noqa: ANN401 - parsed TOML
    if not isinstance(about, dict):
        raise MappingError(f'{place}: write {{ column = "…" }} or another of {", ".join(ORIGINS)}')
    kinds = [kind for kind in ORIGINS if kind in about]
    for key in about:
        if key not in (*ORIGINS, "unit", "step_us"):
            raise MappingError(f"{place}: unknown key {key!r}; {nearest(key, (*ORIGINS, 'unit', 'step_us'))}")
    if len(kinds) != 1:
        raise MappingError(f"{place}: give exactly one of {', '.join(ORIGINS)}")
    kind = kinds[0]
    if kind == "group" and not grouped:
        raise MappingError(f'{place}: there are no groups; add [hdf5] with groups = "…"')
    unit = about.get("unit")
    if unit is not None and (unit not in UNITS_US or field.type != "timestamp"):
        raise MappingError(f"{place}: unit={unit!r}; only times have one, one of {', '.join(UNITS_US)}")
    if "step_us" in about and field.type != "timestamp":
        raise MappingError(f"{place}: step_us is for times only; remove it")
    value = about[kind] if kind == "value" else None
    return Origin(
        kind=kind,
        name=str(about[kind]) if kind in ("column", "scalar") else "",
        value=float(value) if isinstance(value, Decimal) else value,
        unit=unit,
        step_us=Fraction(about.get("step_us", 0)),
    )
