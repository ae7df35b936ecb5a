"""From a Debian machine's own package sources to sources of another suite. Pure: knows neither apt nor the disk.

Strobe names no host: whichever mirror the machine uses, it uses for trixie too, signed by the machine's keyring.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

SUITE = "trixie"  # the first Debian with TimescaleDB
ROLLING = ("stable", "oldstable", "testing", "unstable", "sid")


class Entry(NamedTuple):
    uri: str
    suite: str
    components: tuple[str, ...]
    signed_by: str | None
    options: tuple[str, ...]  # further ones of a .list line that concern the transport, such as trusted=yes


def parse_list(text: str) -> Iterator[Entry]:
    """One-line style: `deb [option=value …] URI SUITE COMPONENT…`."""
    for raw in text.splitlines():
        line = raw.partition("#")[0].strip()
        if not line.startswith(("deb ", "deb\t")):
            continue
        rest = line[3:].strip()
        options: list[str] = []
        if rest.startswith("["):
            inside, _, rest = rest[1:].partition("]")
            options = inside.split()
        parts = rest.split()
        if len(parts) >= 3:
            keyed = dict(option.partition("=")[::2] for option in options)
            kept = tuple(option for option in options if option.startswith(("trusted=", "check-valid-until=")))
            yield Entry(parts[0], parts[1], tuple(parts[2:]), keyed.get("signed-by"), kept)


def parse_deb822(text: str) -> Iterator[Entry]:
    """Paragraphs of `Field: value`; continuation lines begin with a blank, comment lines with #."""
    for paragraph in _paragraphs(text):
        if paragraph.get("enabled", "yes").strip().lower() in ("no", "false", "0"):
            continue
        if "deb" not in paragraph.get("types", "").split():
            continue
        components = tuple(paragraph.get("components", "").split())
        signed_by = paragraph.get("signed-by", "").strip() or None
        kept = tuple(
            f"{name}={paragraph[name].strip()}" for name in ("trusted", "check-valid-until") if name in paragraph
        )
        for uri in paragraph.get("uris", "").split():
            for suite in paragraph.get("suites", "").split():
                yield Entry(uri, suite, components, signed_by, kept)


def _paragraphs(text: str) -> Iterator[dict[str, str]]:
    fields: dict[str, str] = {}
    name = ""
    for line in [*text.splitlines(), ""]:
        if not line.strip():
            if fields:
                yield fields
            fields, name = {}, ""
        elif line.startswith("#"):
            continue
        elif line[0] in " \t":
            if name:
                fields[name] += "\n" + line.strip()
        elif ":" in line:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()


def entries(files: Mapping[str, str]) -> list[Entry]:
    """All entries of the machine's source files: name -> content, by the names that apt itself reads."""
    found: list[Entry] = []
    for name in sorted(files):
        if name.endswith(".sources"):
            found += parse_deb822(files[name])
        elif name.endswith(".list"):
            found += parse_list(files[name])
    return found


def other_suite(found: list[Entry], codename: str, keyring: str, suite: str = SUITE) -> str:
    """The content of a sources.list for `suite`; empty where the machine has no source of Debian's own.

    Debian's own are told from others' by three signs: the suite is the release's name (with -updates or -security),
    there is a component main, and the signature is not somebody else's.
    """
    lines: dict[str, None] = {}
    for entry in found:
        base, dash, rest = entry.suite.partition("-")
        flat = base.partition("/")[0]
        foreign = entry.signed_by is not None and "debian-archive" not in entry.signed_by
        if flat not in (codename, suite, *ROLLING) or "main" not in entry.components or foreign:
            continue
        if dash and rest not in ("updates", "security"):
            continue
        options = " ".join((f"signed-by={keyring}", *entry.options))
        lines[f"deb [{options}] {entry.uri} {suite}{dash}{rest} main"] = None
    return "".join(f"{line}\n" for line in lines)


def wanted(simulation: str) -> list[str]:
    """Which packages of `apt-get install -s` to unpack: PostgreSQL, the extension and the libraries they load.

    Left out: what only maintainer scripts, translations and the just-in-time compiler need (150 MB; run with jit=off).
    """
    names = [line.split()[1] for line in simulation.splitlines() if line.startswith("Inst ")]
    unwanted = ("libperl", "libllvm", "libz3", "libjson-perl", "libtext-", "libio-", "libipc-", "libdebconf")
    return [
        name
        for name in names
        if name.startswith(("lib", "zlib1g", "postgresql-17", "postgresql-client-17")) and not name.startswith(unwanted)
    ]
