"""`python -m processors setup`: registers the rows of every view and makes its topics. Safe to repeat."""

from collections.abc import Iterator, Mapping
from typing import Any

from processors.plan import Plan
from processors.rows import row_schema
from schemas.admin import Admin
from schemas.registry import Registry
from schemas.settings import Settings
from schemas.stream import Stream
from schemas.topics import partials_topic, seen_topic, subject, view_topic


class ChangedViewError(ValueError):
    """A view's definition changed, and its generation did not: old and new rows would be mixed."""


class NotSetUpError(RuntimeError):
    """The registry holds another definition of a view than its file."""


def setup(
    plans: Mapping[str, Plan],
    streams: Mapping[str, Stream],
    settings: Settings,
    registry: Registry,
    admin: Admin,
) -> Iterator[str]:
    """Bring registry and broker into line with the views, one after the other; a sentence for each."""
    registered = set(registry.subjects())
    for plan in plans.values():
        stream = streams[plan.stream]
        if subject(plan.name) in registered:
            _check_unchanged(plan, registry.latest(subject(plan.name))[1])
        schema_id = registry.register(subject(plan.name), row_schema(plan, stream))
        admin.ensure([partials_topic(plan.name, settings), view_topic(plan.name, settings)])
        admin.ensure([seen_topic(stream, admin.partition_count(stream.topic), settings)])
        yield f"{plan.name}: generation {plan.generation} over {stream.name}, schema {schema_id}"


def check_registered(plan: Plan, schema: Mapping[str, Any]) -> None:
    """Raise NotSetUpError where the registered definition is not the plan's."""
    if (_of(schema, "generation"), _of(schema, "fingerprint")) != (plan.generation, plan.fingerprint):
        raise NotSetUpError(
            f"view {plan.name} (generation {plan.generation}) is not what the registry holds"
            f" (generation {_of(schema, 'generation')}); run `python -m processors setup`"
        )


def _check_unchanged(plan: Plan, schema: Mapping[str, Any]) -> None:
    generation = _of(schema, "generation")
    if generation == plan.generation and _of(schema, "fingerprint") != plan.fingerprint:
        raise ChangedViewError(
            f"view {plan.name}: its definition has changed since generation {generation} was set up; write"
            f" WITH (generation = {generation + 1}) into its file, so that old and new rows are not mixed"
        )
    if isinstance(generation, int) and generation > plan.generation:
        raise ChangedViewError(
            f"view {plan.name}: generation {generation} is set up already, and its file says {plan.generation};"
            f" write WITH (generation = {generation + 1}) into its file"
        )


def _of(schema: Mapping[str, Any], name: str) -> Any:
    return schema.get("strobe", {}).get(name)
