"""`python -m schemas setup` as a person meets it: what it makes, what it says, and how it ends."""

import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from schemas.admin import Admin
from schemas.registry import Registry
from schemas.settings import Settings

if TYPE_CHECKING:
    from tests.conftest import Stack

NOBODY = "127.0.0.1:1"  # a port where nobody listens
HELP_WITHIN_S = 60


def setup(environ: dict[str, str], *options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "schemas", "setup", "--wait", "20", *options],
        env=environ,
        capture_output=True,
        text=True,
        timeout=HELP_WITHIN_S,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one stream, `bpm` under a name and topic of its own."""
    schema = json.loads((Settings().streams / "bpm.avsc").read_text())
    schema["strobe"] = {"stream": "thermo", "topic": f"thermo.{uuid.uuid4().hex}", "storage": "row", "partitions": 3}
    (tmp_path / "thermo.avsc").write_text(json.dumps(schema))
    return tmp_path


@pytest.mark.parametrize(
    ("environ", "code", "words"),
    [
        ({"STROBE_KAFKA": NOBODY, "STROBE_REGISTRY": f"http://{NOBODY}"}, 1, "set STROBE_REGISTRY"),
        ({"STROBE_PARTITIONS": "many"}, 2, "STROBE_PARTITIONS='many'"),
        ({"STROBE_STREAMS": "/nowhere"}, 2, "/nowhere: holds no .avsc file"),
    ],
)
def test_trouble_ends_in_one_line_and_a_code_that_says_whose_it_is(
    environ: dict[str, str], code: int, words: str
) -> None:
    ended = setup(environ, "--wait", "0.2")
    assert ended.returncode == code
    (line,) = ended.stderr.splitlines()
    assert words in line
    assert ended.stdout == ""


@pytest.mark.parametrize("wait", ["0", "-1", "nan", "soon"])
def test_a_wait_that_is_none_is_refused(wait: str) -> None:
    ended = setup({}, "--wait", wait)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr


@pytest.mark.stack
def test_a_file_is_all_that_a_new_stream_needs_for_its_topics_and_its_subject(stack: "Stack", folder: Path) -> None:
    environ = stack.environ("writer") | {"STROBE_STREAMS": str(folder)}
    first, second = setup(environ, "--json"), setup(environ, "--json")
    assert (first.returncode, first.stderr) == (0, "")
    (done,) = map(json.loads, first.stdout.splitlines())
    assert first.stdout == second.stdout, "a second time nothing changes"
    admin, registry = Admin(stack.settings().kafka), Registry(stack.settings().registry)
    assert admin.topic_id(done["topic"]) == done["topic_id"]
    assert admin.partition_count(done["topic"]) == admin.partition_count(f"{done['topic']}.seen") == 3
    assert registry.latest(done["subject"])[0] == done["schema_id"]


@pytest.mark.stack
def test_an_incompatible_schema_is_refused_at_start_and_nothing_is_changed(stack: "Stack", folder: Path) -> None:
    environ = stack.environ("writer") | {"STROBE_STREAMS": str(folder)}
    before = json.loads(setup(environ, "--json").stdout)
    path = folder / "thermo.avsc"
    path.write_text(path.read_text().replace('["null", "float"], "default": null', '"boolean"', 1))
    shown = setup(environ)
    assert shown.returncode == 2
    (line,) = shown.stderr.splitlines()
    assert f"the schema of {before['subject']} is not compatible" in line
    assert Registry(stack.settings().registry).latest(before["subject"])[0] == before["schema_id"]
