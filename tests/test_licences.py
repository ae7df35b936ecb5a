"""Whoever runs Strobe under Apache-2.0 must be able to: no dependency that a running pipeline imports forbids it."""

import re
from importlib.metadata import distribution
from pathlib import Path

import pytest

RUN = Path(__file__).parent.parent / "requirements" / "run.txt"
PINNED = re.compile(
    r"^([A-Za-z0-9][A-Za-z0-9_.-]*)(?:\[[^\]]*\])?==[^\s;]+ *(?!;)\\$", re.MULTILINE
)  # on every platform
NAMES = PINNED.findall(RUN.read_text())
# LGPL binds who changes or embeds the library, not who imports it (psycopg2).
STRONG_COPYLEFT = re.compile(r"\bA?GPL|(?<!lesser )(?<!library or lesser )general public license|affero", re.IGNORECASE)


@pytest.mark.parametrize("name", NAMES)
def test_a_dependency_does_not_forbid_our_licence(name: str) -> None:
    metadata = distribution(name).metadata
    classified = [line for line in metadata.get_all("Classifier") or [] if line.startswith("License ::")]
    said = [metadata.get("License-Expression"), (metadata.get("License") or "").split("\n")[0], *classified]
    licences = [text for text in said if text]
    assert licences, "says no licence"
    assert not any(STRONG_COPYLEFT.search(text) for text in licences), licences
