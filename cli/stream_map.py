"""Which streams and views there are, as the schema registry describes them: what the proof and the drain go by.

Asked over plain HTTP, so that nothing here leans on the code that it is to check.
"""

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from cli.failure import FailedError

ANSWER_S_MAX = 10.0


@dataclass(frozen=True)
class StreamMap:
    """A stream's topic and table, and the names of the fields that identify a reading."""

    name: str  # of the raw table too
    topic: str
    run: str
    trigger: str
    time: str
    instrument: str
    readings: str | None  # the array field; None: one reading per record


@dataclass(frozen=True)
class ViewMap:
    name: str  # of the topic and the table too
    stream: str
    generation: int
    group: tuple[str, ...]
    size_us: int
    hop_us: int

    @property
    def tumbling(self) -> bool:
        return self.size_us == self.hop_us


class NotThereError(FailedError):
    """The registry answers and knows no such thing."""


def ask(registry: str, path: str) -> Any:  # noqa: ANN401 - JSON
    url = f"{registry.rstrip('/')}{path}"
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_S_MAX) as answer:  # noqa: S310 - the user's own registry
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise NotThereError(f"the schema registry says {error.code} to {url}") from None
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise FailedError(f"the schema registry does not answer at {url} ({reason}); see ./strobe status") from None


def schemas_in(registry: str) -> list[dict[str, Any]]:
    """The newest schema of each subject that says what it is of ours."""
    found = []
    for subject in sorted(ask(registry, "/subjects")):
        schema = json.loads(ask(registry, f"/subjects/{subject}/versions/latest")["schema"])
        if isinstance(schema, dict) and isinstance(schema.get("strobe"), dict):
            found.append(schema)
    return found


def stream_of(schema: dict[str, Any]) -> StreamMap:
    """Roles of top-level fields, and of the fields of the array whose role is `readings`."""
    roles, readings = {}, None
    fields = list(schema["fields"])
    for field in schema["fields"]:
        if field.get("strobe", {}).get("role") == "readings":
            readings = field["name"]
            fields += field["type"]["items"]["fields"]
    for field in fields:
        role = field.get("strobe", {}).get("role")
        if role and role != "value":
            roles[role] = field["name"]
    about = schema["strobe"]
    return StreamMap(
        name=about["stream"],
        topic=about["topic"],
        run=roles["run"],
        trigger=roles["trigger"],
        time=roles["time"],
        instrument=roles["instrument"],
        readings=readings,
    )


def view_of(schema: dict[str, Any]) -> ViewMap:
    about = schema["strobe"]
    return ViewMap(
        name=about["view"],
        stream=about["stream"],
        generation=about["generation"],
        group=tuple(about["group"]),
        size_us=about["size_us"],
        hop_us=about["hop_us"],
    )


def streams_in(registry: str) -> list[StreamMap]:
    return [stream_of(schema) for schema in schemas_in(registry) if "topic" in schema["strobe"]]


def views_in(registry: str) -> list[ViewMap]:
    return [view_of(schema) for schema in schemas_in(registry) if "view" in schema["strobe"]]
