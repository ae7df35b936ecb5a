"""The registry, real and pretended: what is accepted, what is refused and why, and what happens when it is away."""

import copy
import json
import threading
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sink_database import batch

from schemas.codec import Codec, UnknownSchemaIdError
from schemas.registry import COMPATIBILITY, Registry, RegistryAwayError, RegistryError
from schemas.stream import load_stream

if TYPE_CHECKING:
    from tests.conftest import Stack

BPM_FILE = Path(__file__).parent.parent / "schemas" / "streams" / "bpm.avsc"
BPM = load_stream(BPM_FILE).avro
NOBODY = "http://127.0.0.1:1/apis/ccompat/v7"  # a port where nobody listens
PATIENCE_S = 0.5


class PretendedRegistry(ThreadingHTTPServer):
    """Answers what it is told to, in turn, then the last answer for ever; and remembers what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.answers: list[tuple[int, bytes]] = []
        self.asked: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def will_answer(self, *answers: tuple[int, Any]) -> None:
        self.answers = [(code, json.dumps(body).encode()) for code, body in answers]


class Answer(BaseHTTPRequestHandler):
    server: PretendedRegistry

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append(f"{self.command} {self.path}")
        code, body = self.server.answers.pop(0) if len(self.server.answers) > 1 else self.server.answers[0]
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = answer  # noqa: N815 - names that http.server asks for

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def pretended() -> Iterator[PretendedRegistry]:
    server = PretendedRegistry()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def kept(schema: dict[str, Any]) -> tuple[int, Any]:
    return 200, {"schema": json.dumps(schema)}


UNKNOWN = (404, {"error_code": 40403, "message": "Schema 7 not found."})


def one_line(error: pytest.ExceptionInfo[Exception]) -> str:
    (line,) = str(error.value).splitlines()
    return line


# --- away ---


def test_a_registry_that_is_away_at_start_is_tried_for_a_bounded_time_and_ends_in_one_line() -> None:
    registry = Registry(NOBODY, PATIENCE_S)
    for ask in (lambda: registry.register("s", BPM), registry.subjects, lambda: registry.latest("s")):
        begin = time.monotonic()
        with pytest.raises(RegistryAwayError, match=r"127\.0\.0\.1:1.*STROBE_REGISTRY.*tried for 0\.5 s") as error:
            ask()
        assert time.monotonic() - begin < PATIENCE_S + 5
        assert one_line(error)


def test_a_registry_that_comes_up_late_is_waited_for(pretended: PretendedRegistry) -> None:
    pretended.will_answer((503, {}), (500, {}), (200, ["a-value"]))
    assert Registry(pretended.url, wait_s=10).subjects() == ["a-value"]
    assert len(pretended.asked) == 3


def test_a_look_up_asks_once_and_leaves_the_waiting_to_the_caller(pretended: PretendedRegistry) -> None:
    pretended.will_answer((503, {}))
    with pytest.raises(RegistryAwayError):
        Registry(pretended.url, wait_s=10).schema(7)
    assert len(pretended.asked) == 1


def test_a_schema_once_looked_up_outlives_the_registry(pretended: PretendedRegistry) -> None:
    pretended.will_answer(kept(BPM), (503, {}))
    registry = Registry(pretended.url, PATIENCE_S)
    assert registry.schema(1) == BPM
    assert registry.schema(1) == BPM
    with pytest.raises(RegistryAwayError):
        registry.schema(2)
    assert registry.schema(1) == BPM
    assert len(pretended.asked) == 2


def test_no_proxy_stands_between_us_and_our_own_machine(
    pretended: PretendedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    pretended.will_answer((200, []))
    assert Registry(pretended.url, PATIENCE_S).subjects() == []


# --- unknown ids ---


def test_an_unknown_id_is_bad_data_and_not_trouble(pretended: PretendedRegistry) -> None:
    pretended.will_answer(UNKNOWN)
    with pytest.raises(UnknownSchemaIdError):
        Registry(pretended.url, PATIENCE_S).schema(7)


def test_that_an_id_is_unknown_is_not_remembered_so_that_all_stages_judge_by_the_same_answer(
    pretended: PretendedRegistry,
) -> None:
    pretended.will_answer(UNKNOWN, kept(BPM))
    registry = Registry(pretended.url, PATIENCE_S)
    with pytest.raises(UnknownSchemaIdError):
        registry.schema(7)
    assert registry.schema(7) == BPM


def test_a_batch_of_records_with_an_unknown_id_asks_once(pretended: PretendedRegistry) -> None:
    pretended.will_answer(UNKNOWN)
    registry = Registry(pretended.url, PATIENCE_S)
    record = b"\0" + (7).to_bytes(4, "big")
    decoded = Codec(load_stream(BPM_FILE), registry.schema).decode(batch(0, [record] * 1000))
    assert [letter.reason for letter in decoded.letters] == ["unknown-schema"] * 1000
    assert len(pretended.asked) == 1


@pytest.mark.parametrize(
    "foreign",
    [
        {"schema": '"string"'},
        {"schema": '["null", "string"]'},
        {"schema": '{"type": "object"}', "schemaType": "JSON"},
        {"schema": 'syntax = "proto3";', "schemaType": "PROTOBUF"},
        {"schema": "no json"},
    ],
)
def test_a_schema_that_is_no_avro_record_is_as_good_as_unknown(
    pretended: PretendedRegistry, foreign: dict[str, str]
) -> None:
    pretended.will_answer((200, foreign))
    with pytest.raises(UnknownSchemaIdError):
        Registry(pretended.url, PATIENCE_S).schema(7)


# --- refused ---


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            (409, {"error_code": 409, "message": "reader field\nlacks a default"}),
            "not compatible .*reader field lacks a",
        ),
        ((422, {"error_code": 42201, "message": "Invalid schema"}), "refuses s-value: Invalid schema"),
        ((401, {"error_code": 401, "message": "no"}), "user:password@host"),
        ((404, {}), "not as a schema registry.*/apis/ccompat/v7"),
        ((200, "a web page"), "not as a schema registry"),
    ],
)
def test_a_refusal_is_told_in_one_line_with_the_registrys_own_reason(
    pretended: PretendedRegistry, answer: tuple[int, Any], words: str
) -> None:
    pretended.will_answer((200, {"compatibility": COMPATIBILITY}), answer)
    with pytest.raises(RegistryError, match=words) as error:
        Registry(pretended.url, wait_s=10).register("s-value", BPM)
    assert one_line(error)
    assert not isinstance(error.value, RegistryAwayError)
    assert len(pretended.asked) == 2, "what is refused is not tried again"


def test_what_is_no_address_is_refused_before_anything_is_asked() -> None:
    with pytest.raises(RegistryError, match=r"'registry:8081' is no address.*STROBE_REGISTRY"):
        Registry("registry:8081")


def test_a_password_in_the_address_is_never_told() -> None:
    with pytest.raises(RegistryAwayError) as error:
        Registry("http://me:secret@127.0.0.1:1", PATIENCE_S).subjects()
    assert "secret" not in str(error.value)


# --- the real one ---


@pytest.fixture
def registry(stack: "Stack") -> Registry:
    return Registry(stack.settings().registry)


@pytest.fixture
def subject() -> str:
    return f"test.{uuid.uuid4().hex}-value"


def changed(**readings: Any) -> dict[str, Any]:
    """`bpm` with fields of its readings replaced, added or (None) removed."""
    schema = copy.deepcopy(BPM)
    items = schema["fields"][-1]["type"]["items"]
    for name, field in readings.items():
        items["fields"] = [old for old in items["fields"] if old["name"] != name]
        if field is not None:
            items["fields"].append({"name": name, "strobe": {"role": "value"}} | field)
    return schema


OPTIONAL = {"type": ["null", "float"], "default": None}


@pytest.mark.stack
def test_the_same_schema_has_the_same_number_and_comes_back_with_our_attributes(
    registry: Registry, subject: str, stack: "Stack"
) -> None:
    number = registry.register(subject, BPM)
    assert registry.register(subject, BPM) == number
    assert Registry(stack.settings().registry).register(subject, BPM) == number
    for schema in (Registry(stack.settings().registry).schema(number), registry.latest(subject)[1]):
        assert schema["strobe"] == BPM["strobe"]
        assert schema["fields"][0]["strobe"]["role"] == "source"
    assert subject in registry.subjects()


@pytest.mark.stack
def test_every_subject_is_guarded_against_all_its_earlier_schemas(registry: Registry, subject: str) -> None:
    registry.register(subject, BPM)
    assert registry._client.get_compatibility(subject) == "BACKWARD_TRANSITIVE"


@pytest.mark.stack
def test_a_new_optional_field_is_accepted(registry: Registry, subject: str) -> None:
    first = registry.register(subject, BPM)
    second = registry.register(subject, changed(temperature=OPTIONAL))
    assert second != first
    assert registry.latest(subject)[0] == second


@pytest.mark.stack
def test_a_new_field_without_default_is_refused_with_the_registrys_reason(registry: Registry, subject: str) -> None:
    registry.register(subject, BPM)
    with pytest.raises(RegistryError, match=rf"{subject} is not compatible .*temperature.*default") as error:
        registry.register(subject, changed(temperature={"type": "float"}))
    assert one_line(error)


@pytest.mark.stack
def test_a_changed_type_is_refused_with_the_registrys_reason(registry: Registry, subject: str) -> None:
    registry.register(subject, BPM)
    with pytest.raises(RegistryError, match="FLOAT"):
        registry.register(subject, changed(top_in={"type": ["null", "string"], "default": None}))


@pytest.mark.stack
def test_a_wider_type_is_accepted(registry: Registry, subject: str) -> None:
    first = registry.register(subject, BPM)
    assert registry.register(subject, changed(top_in={"type": ["null", "double"], "default": None})) != first


@pytest.mark.stack
def test_a_field_may_leave_but_not_come_back_as_another_type(registry: Registry, subject: str) -> None:
    registry.register(subject, changed(temperature=OPTIONAL))
    registry.register(subject, BPM)  # left out: readers give null
    with pytest.raises(RegistryError, match="not compatible"):
        registry.register(subject, changed(temperature={"type": ["null", "string"], "default": None}))
    registry.register(subject, changed(temperature=OPTIONAL))


@pytest.mark.stack
def test_an_unknown_number_is_told_apart_from_trouble_by_the_real_registry_too(registry: Registry) -> None:
    with pytest.raises(UnknownSchemaIdError):
        registry.schema(2_000_000_000)


@pytest.mark.stack
def test_an_address_without_the_path_is_told_from_a_registry(stack: "Stack") -> None:
    url = stack.settings().registry.split("/apis/")[0]
    with pytest.raises(RegistryError, match="/apis/ccompat/v7"):
        Registry(url, PATIENCE_S).subjects()


@pytest.mark.stack
def test_when_the_real_registry_goes_away_known_numbers_go_on_and_new_ones_wait(
    registry: Registry, subject: str, stack: "Stack"
) -> None:
    known, new = registry.register(subject, BPM), registry.register(subject, changed(temperature=OPTIONAL))
    assert registry.schema(known)["name"] == "BpmTrigger"
    stack.kill("registry")
    try:
        assert registry.schema(known)["name"] == "BpmTrigger"
        with pytest.raises(RegistryAwayError):
            registry.schema(new)
    finally:
        stack.start("registry")
    assert registry.schema(new)["fields"][-1]["name"] == "readings"
