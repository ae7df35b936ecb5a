"""What the documents say is there: files, links, words, commands, settings, figures."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from schemas import topics
from schemas.settings import Settings

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if path.name != "CHANGELOG.md"
)
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
PAGE_LINES = 75  # what fits on a page, about
FOLDERS = ("schemas", "producers", "processors", "sinks", "cli", "deploy", "tests", "docs", "requirements")


def text_of(document: str) -> str:
    return (ROOT / document).read_text()


def files_named(text: str) -> set[str]:
    """Paths in backticks that begin with a folder of ours and are no pattern."""
    named = re.findall(r"`((?:" + "|".join(FOLDERS) + r")/[^`\s]*)`", text)
    return {name for name in named if not re.search(r"[*<>]", name)}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_that_is_named_exists(document: str) -> None:
    missing = {name for name in files_named(text_of(document)) if not (ROOT / name).exists()}
    assert missing == set()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_somewhere(document: str) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", text_of(document))
    missing = [link for link in links if "://" not in link and not (ROOT / document).parent.joinpath(link).exists()]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_setting_that_is_named_is_read_somewhere(document: str) -> None:
    named = set(re.findall(r"\bSTROBE_[A-Z_]+", text_of(document)))
    sources = "".join(
        path.read_text() for folder in ("schemas", "deploy", "cli") for path in ROOT.glob(f"{folder}/**/*.py")
    )
    assert {name for name in named if name not in sources} == set()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_constant_that_is_named_with_its_file_is_in_it(document: str) -> None:
    """`NAME` (or `NAME`, `OTHER`) in `file`."""
    for names, file in re.findall(r"((?:`[A-Za-z_]+`,? )+)(?:of|in)\s+`([a-z_/]+\.py)`", text_of(document)):
        source = (ROOT / file).read_text()
        assert [name for name in re.findall(r"`(\w+)`", names) if name not in source] == []


def test_every_word_of_the_glossary_stands_in_the_file_that_it_points_to() -> None:
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| `([^`]+)` \|$", text_of("docs/glossary.md"), re.MULTILINE)
    assert len(rows) > 50
    absent = []
    for words, _, file in rows:
        source = (ROOT / file).read_text().lower()
        absent += [(word, file) for word in words.lower().split(", ") if not re.search(_pattern(word), source)]
    assert absent == []


def _pattern(word: str) -> str:
    """A word as prose or as a name: raw batch, RawBatch, raw_batch."""
    return r"[\s_-]?".join(re.escape(part) for part in re.split(r"[\s_-]", word))


def test_every_word_of_the_glossary_has_one_meaning() -> None:
    words = re.findall(r"^\| ([^|]+) \| [^|]+ \| `", text_of("docs/glossary.md"), re.MULTILINE)
    each = [word for cell in words for word in cell.split(", ")]
    assert len(each) == len(set(each))


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.name)
def test_a_decision_is_half_a_page_of_four_parts(path: Path) -> None:
    text = path.read_text()
    assert text.startswith(f"# {path.name[:4]} ")
    parts = re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE)
    assert parts == ["Context", "Decision", "Alternatives", "Consequences"]
    assert len(text.splitlines()) < PAGE_LINES


def test_decisions_are_numbered_without_a_gap() -> None:
    assert [int(path.name[:4]) for path in DECISIONS] == list(range(1, len(DECISIONS) + 1))


@pytest.mark.parametrize("document", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_what_is_to_be_one_page_is_one_page(document: str) -> None:
    assert len(text_of(document).splitlines()) <= PAGE_LINES


def test_the_way_from_trigger_to_row_is_eight_files_and_each_names_the_next() -> None:
    section = text_of("README.md").split("## From trigger to row")[1].split("\n## ")[0]
    path = re.findall(r"^\d\. `([^`]+)`", section, re.MULTILINE)
    assert 3 <= len(path) <= 8
    silent = [
        f"{here} does not name {there}"
        for here, there in pairwise(path)
        if not re.search(_reference(there), (ROOT / here).read_text())
    ]
    assert silent == []


def _reference(file: str) -> str:
    """As a path, or as a module."""
    return re.escape(file) + "|" + re.escape(file.removesuffix(".py").replace("/", "."))


def test_retention_is_as_the_documents_say() -> None:
    table = text_of("docs/decisions/0008-how-long-things-are-kept.md")
    assert f"7 days, and {topics.STREAM_BYTES // 10**9} GB" in table
    assert f"{topics.VIEW_RETENTION_HOURS} hours, and {topics.VIEW_BYTES // 10**9} GB" in table
    assert f"7 days or {topics.STREAM_BYTES // 10**9} GB" in text_of("README.md")


def test_the_streams_and_views_that_the_changelog_lists_are_shipped() -> None:
    text = text_of("CHANGELOG.md")
    shipped = [path.stem for path in (*Settings().streams.glob("*.avsc"), *Settings().views.glob("*.sql"))]
    assert [name for name in shipped if f"`{name}`" not in text] == []


def test_the_licence_is_apaches_in_full() -> None:
    text = text_of("LICENSE")
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
