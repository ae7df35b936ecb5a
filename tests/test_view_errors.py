"""However a view's text is damaged: it loads, or it is refused in one line. Nothing else ever comes out."""

import re
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from processors.plan import ViewError, build_plan
from schemas.stream import load_streams

ROOT = Path(__file__).parent.parent
STREAMS = load_streams(ROOT / "schemas" / "streams")
SQL = (
    (ROOT / "processors" / "views" / "bpm_rolling_1m.sql")
    .read_text()
    .replace(" AS\n", " WITH (lateness = '1 s') AS\n", 1)
)
TOKENS = re.findall(r"--[^\n]*\n|'[^']*'|::|\w+|\s+|.", SQL)
WORDS = [
    "'",
    "''",
    "(",
    ")",
    ",",
    ";",
    ".",
    "*",
    "$1",
    "0",
    "1e400",
    "-1",
    "9223372036854775808",
    "NULL",
    "true",
    "é",
    "\0",
]
WORDS += [
    "/",
    "=",
    "<",
    "||",
    "@>",
    "%",
    "^",
    "::real",
    "::bigint",
    "::numeric",
    "::int[]",
    "'x'",
    "x'1'",
    "[1]",
    "ARRAY[1]",
]
WORDS += [
    "WHERE",
    "HAVING",
    "OVER ()",
    "AND",
    "NOT",
    "IS NULL",
    "IS TRUE",
    "IN (1)",
    "BETWEEN 1 AND 2",
    "LIKE 'a'",
    "DISTINCT",
]
WORDS += [
    "time",
    "status",
    "instrument_id",
    "top_in",
    "window_start",
    "doros",
    "bpm",
    "positions",
    "amplitudes",
    "nullif",
]
WORDS += [
    "count(*)",
    "avg(x)",
    "min(min(x))",
    "sum()",
    "now()",
    "random()",
    "abs(x)",
    "sqrt(-1)",
    "current_date",
    "f(x, y)",
]
WORDS += [
    "TUMBLE",
    "HOP",
    "SESSION",
    "INTERVAL '1 day'",
    "INTERVAL '1' DAY",
    "LATERAL",
    "JOIN",
    "UNION",
    "(SELECT 1)",
    "LIMIT 1",
]
WORDS += [
    "CASE WHEN true THEN 1 END",
    "coalesce(x, 1)",
    "greatest(x, 1)",
    "ROW(1)",
    "GROUPING SETS ((x))",
    "FILTER (WHERE true)",
]
EDITS = st.lists(
    st.tuples(
        st.integers(0, len(TOKENS) - 1), st.sampled_from(["drop", "put", "twice", "swap"]), st.sampled_from(WORDS)
    ),
    min_size=1,
    max_size=4,
)


def damaged(edits: list[tuple[int, str, str]]) -> str:
    tokens = list(TOKENS)
    for place, edit, word in edits:
        at = min(place, len(tokens) - 2)
        if edit == "drop":
            del tokens[at]
        elif edit == "put":
            tokens[at] = f" {word} "
        elif edit == "twice":
            tokens.insert(at, tokens[at])
        else:
            tokens[at], tokens[at + 1] = tokens[at + 1], tokens[at]
    return "".join(tokens)


def refusal(sql: str) -> str | None:
    """What the author is told; None: the view loads."""
    try:
        plan = build_plan(sql, "v.sql", STREAMS)
    except ViewError as error:
        return str(error)
    assert plan.outputs
    return None


@given(EDITS)
@settings(max_examples=400)
def test_a_damaged_view_loads_or_is_refused_in_one_line(edits: list[tuple[int, str, str]]) -> None:
    sql = damaged(edits)
    told = refusal(sql)
    if told is not None:
        place = re.fullmatch(r"v\.sql:(\d+):(\d+): .+; .+", told)
        assert place, told
        assert 1 <= int(place[1]) <= sql.count("\n") + 1
        assert 1 <= int(place[2]) <= len(sql.split("\n")[int(place[1]) - 1]) + 1


@given(st.text(max_size=60))
def test_any_text_is_refused_in_one_line(text: str) -> None:
    told = refusal(text)
    assert told
    assert "\n" not in told
