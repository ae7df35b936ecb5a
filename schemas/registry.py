"""The schema registry: gives schemas their numbers, and gives schemas back for numbers. Does not know what they mean.

Trouble is of three kinds, told apart here: the registry refuses (`RegistryError`, with its own reason), it does not
answer (`RegistryAwayError`: come back later), or it knows no such schema (`UnknownSchemaIdError`: bad data).
"""

import json
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import httpx2
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from schemas.codec import UnknownSchemaIdError

COMPATIBILITY = "BACKWARD_TRANSITIVE"  # whoever has the newest schema reads every record ever written
WAIT_S = 30.0  # at start: a registry that starts together with us takes 5 s
REQUEST_S = 5.0  # one answer; local ones take milliseconds
RETRY_FIRST_S, RETRY_MAX_S = 0.1, 2.0  # pause before the second try, doubled up to the longest
SUBJECT_NOT_FOUND, SCHEMA_NOT_FOUND = 40401, 40403  # the API's own codes
LOOPBACK = ("127.0.0.1", "localhost", "::1")
HTTP_BUSY = (408, 429, 500, 502, 503, 504)  # worth another try

T = TypeVar("T")


class RegistryError(RuntimeError):
    """The registry refuses, or cannot be used as it is set up: why, and the remedy, in one line."""


class RegistryAwayError(RegistryError):
    """The registry does not answer. Nothing is wrong with the data: wait and ask again."""


class Registry:
    """One registry with Confluent's API (Confluent, Apicurio, Karapace).

    For example::

        registry = Registry(settings.registry)
        schema_id = registry.register("bpm.v1-value", stream.avro)
        codec = Codec(stream, registry.schema)

    Schemas are kept for ever once looked up (a number never changes its meaning), so a registry that goes away
    later matters only for numbers not seen before. "No such schema" is never kept: stages that read one record at
    nearly one time would judge it differently, each by the age of what it remembers. So ask once for a batch.
    """

    def __init__(self, url: str, wait_s: float = WAIT_S) -> None:
        self.wait_s = wait_s
        self.url = _without_password(url)
        self._schemas: dict[int, dict[str, Any]] = {}
        try:
            self._client = SchemaRegistryClient({"url": url, "timeout": REQUEST_S, "max.retries": 0})
        except ValueError:
            raise RegistryError(f"{self.url!r} is no address of a registry; set STROBE_REGISTRY to http://…") from None
        if urlsplit(url).hostname in LOOPBACK:
            # A proxy that the environment names cannot reach this machine's own loopback, yet would be asked.
            session = self._client._rest_client.session  # noqa: SLF001 - the library has no setting for it
            session._mounts = {}  # noqa: SLF001

    def register(self, subject: str, schema: dict[str, Any]) -> int:
        """Make sure that the subject has this schema, and return its number; the same schema, the same number."""

        def register() -> int:
            # Before the schema: a subject that is not yet guarded would take anything.
            self._client.set_compatibility(subject, COMPATIBILITY)
            return self._client.register_schema(subject, Schema(json.dumps(schema), "AVRO"))

        return self._patiently(register, subject)

    def schema(self, schema_id: int) -> dict[str, Any]:
        """The Avro schema of that number. Asks once at most: the caller decides how long to wait."""
        known = self._schemas.get(schema_id)
        if known is not None:
            return known
        try:
            found = self._once(lambda: self._client.get_schema(schema_id), f"schema {schema_id}")
        except SchemaRegistryError as error:
            if error.error_code != SCHEMA_NOT_FOUND:
                raise self._refusal(error, f"schema {schema_id}") from None
            found = None
        schema = _avro_record(found)
        if schema is None:
            raise UnknownSchemaIdError(schema_id)
        self._schemas[schema_id] = schema
        return schema

    def subjects(self) -> list[str]:
        return sorted(self._patiently(self._client.get_subjects, "subjects"))

    def latest(self, subject: str) -> tuple[int, dict[str, Any]]:
        """The number and the schema that were registered last."""
        found = self._patiently(lambda: self._client.get_latest_version(subject), subject)
        schema = _avro_record(found.schema)
        if schema is None or found.schema_id is None:
            raise RegistryError(f"subject {subject} at {self.url} holds no Avro record; give the topic another name")
        return found.schema_id, schema

    def _patiently(self, ask: Callable[[], T], what: str) -> T:
        """Ask until there is an answer, with growing pauses, for at most `wait_s`."""
        until = time.monotonic() + self.wait_s
        pause_s = RETRY_FIRST_S
        while True:
            try:
                return self._once(ask, what)
            except SchemaRegistryError as error:
                raise self._refusal(error, what) from None
            except RegistryAwayError as error:
                if time.monotonic() + pause_s > until:
                    raise RegistryAwayError(f"{error} (tried for {self.wait_s:g} s)") from None
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, RETRY_MAX_S)

    def _once(self, ask: Callable[[], T], what: str) -> T:
        """One answer or RegistryAwayError; what the registry itself says comes as the library's error."""
        try:
            return ask()
        except httpx2.TransportError as error:
            raise self._away(str(error) or type(error).__name__) from None
        except SchemaRegistryError as error:
            if error.http_status_code in HTTP_BUSY:
                raise self._away(f"HTTP {error.http_status_code}") from None
            raise
        except (ValueError, KeyError, TypeError, AttributeError, httpx2.InvalidURL) as error:
            # What the library trips over when the answer is a web page, say.
            raise RegistryError(
                f"{self.url} answers, but not as a schema registry ({what}: {error}); correct STROBE_REGISTRY"
            ) from None

    def _away(self, why: str) -> RegistryAwayError:
        return RegistryAwayError(
            f"the schema registry {self.url} does not answer ({why}); start it, or set STROBE_REGISTRY"
        )

    def _refusal(self, error: SchemaRegistryError, what: str) -> RegistryError:
        reason = " ".join(str(error.error_message).split())
        if error.http_status_code == 409:
            return RegistryError(
                f"the schema of {what} is not compatible with the ones registered before: {reason}; give the new field"
                ' a default, or use another topic ("bpm.v2")'
            )
        if error.http_status_code in (401, 403):
            return RegistryError(
                f"the schema registry {self.url} lets us not in (HTTP {error.http_status_code}); put user and password"
                " into STROBE_REGISTRY: http://user:password@host:port"
            )
        if error.error_code == SUBJECT_NOT_FOUND:
            return RegistryError(f"subject {what} is not registered at {self.url}; run `python -m schemas setup`")
        if error.http_status_code in (404, 405):
            return RegistryError(
                f"{self.url} answers, but not as a schema registry (HTTP {error.http_status_code}); correct"
                " STROBE_REGISTRY: Apicurio's path is /apis/ccompat/v7"
            )
        return RegistryError(f"the schema registry {self.url} refuses {what}: {reason}")


def _avro_record(found: Schema | None) -> dict[str, Any] | None:
    """Parse what the registry keeps; None where it is no Avro record (JSON, Protobuf, a bare "string")."""
    if found is None or found.schema_type not in (None, "AVRO") or not found.schema_str:
        return None
    try:
        schema = json.loads(found.schema_str)
    except ValueError:
        return None
    return schema if isinstance(schema, dict) and schema.get("type") == "record" else None


def _without_password(url: str) -> str:
    """Messages and logs name the address, never the password in it."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
