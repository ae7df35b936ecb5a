"""What only an operator can decide: to go on with a topic made anew, or past records that are gone."""

from collections.abc import Iterator, Mapping

from psycopg2.extensions import connection as Connection  # noqa: N812 - a class, whatever its name

from schemas.stream import Stream
from sinks.raw_store import add_incarnation, incarnation_of, note_gap
from sinks.timescale import transaction


def accept_topic(connection: Connection, stream: Stream, topic_id: str) -> str:
    """Record that the stream goes on in the topic of this id; its partitions begin at the log's start."""
    with transaction(connection) as cursor:
        known = incarnation_of(cursor, stream.name)
        if known is not None and known[1] == topic_id:
            return f"{stream.name}: topic {stream.topic} is the one known (incarnation {known[0]}, id {topic_id})"
        number = 1 if known is None else known[0] + 1
        add_incarnation(cursor, stream, topic_id, number)
    return f"{stream.name}: goes on in topic {stream.topic} with id {topic_id}, incarnation {number}"


def accept_gap(
    connection: Connection,
    stream: Stream,
    topic_id: str,
    begins: Mapping[int, int],
    ends: Mapping[int, int],
) -> Iterator[str]:
    """Move positions that the log does not hold to its nearest end, and note what is missing in strobe.gaps."""
    with transaction(connection) as cursor:
        cursor.execute(
            "SELECT partition, next FROM strobe.positions WHERE stream = %s AND topic_id = %s ORDER BY partition"
            " FOR UPDATE",
            (stream.name, topic_id),
        )
        found = cursor.fetchall()
        for partition, following in found:
            nearest = min(max(following, begins.get(partition, following)), ends.get(partition, following))
            if nearest == following:
                continue
            # The epoch too, so that a sink which still holds the partition stores nothing at the old position.
            cursor.execute(
                "UPDATE strobe.positions SET next = %s, first = least(first, %s), epoch = epoch + 1"
                " WHERE stream = %s AND topic_id = %s AND partition = %s",
                (nearest, nearest, stream.name, topic_id, partition),
            )
            note_gap(cursor, stream.name, topic_id, partition, following, nearest)
            yield f"{stream.topic}[{partition}]: goes on at {nearest} instead of {following}; noted in strobe.gaps"
