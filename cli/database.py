"""Questions to the database about what is stored: the shell on psycopg2. Reads only."""

from collections.abc import Iterable
from typing import Any, Self

import psycopg2
import psycopg2.extensions
from psycopg2 import sql

from cli.failure import FailedError
from cli.stream_map import StreamMap, ViewMap
from cli.verify import Place, Window

CONNECT_S_MAX = 10
ROWS_AT_ONCE = 50_000  # fetched from the server at a time
EPOCH = "TIMESTAMPTZ '1970-01-01 00:00:00+00'"


class Database:
    """One snapshot: all answers are of the same moment.

    For example::

        with Database(addresses.databases["writer"]) as database:
            database.raw_positions()   # {("bpm.v1", 0): 1200, …}
    """

    def __init__(self, url: str) -> None:
        try:
            self._connection = psycopg2.connect(url, connect_timeout=CONNECT_S_MAX)
        except psycopg2.OperationalError as error:
            reason = str(error).strip().splitlines()[-1]
            raise FailedError(f"the database does not answer ({reason}); see ./strobe status") from None
        self._connection.set_session(isolation_level=psycopg2.extensions.ISOLATION_LEVEL_REPEATABLE_READ, readonly=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()

    def raw_positions(self) -> dict[tuple[str, int], int]:
        """How far each stream's raw table reaches, in the newest life of its topic."""
        rows = self._all(
            sql.SQL(
                "SELECT i.topic, p.partition, p.next FROM strobe.positions p"
                " JOIN strobe.incarnations i USING (stream, incarnation) WHERE p.incarnation ="
                " (SELECT max(n.incarnation) FROM strobe.incarnations n WHERE n.stream = p.stream)"
            )
        )
        return {(topic, partition): next_offset for topic, partition, next_offset in rows}

    def topic_life(self, stream: str) -> tuple[int, str] | None:
        """Incarnation and Kafka's id of the stream's topic, as the raw sink knows it."""
        rows = self._all(
            sql.SQL(
                "SELECT incarnation, topic_id FROM strobe.incarnations WHERE stream = %s"
                " ORDER BY incarnation DESC LIMIT 1"
            ),
            (stream,),
        )
        return rows[0] if rows else None

    def exists(self, table: str) -> bool:
        return bool(self._all(sql.SQL("SELECT to_regclass(%s) IS NOT NULL"), (f'"{table}"',))[0][0])

    def raw_rows(
        self, stream: StreamMap, incarnation: int, begins: dict[int, int], ends: dict[int, int]
    ) -> Iterable[tuple[int, int, str, int, int, int]]:
        """(run, trigger, instrument, partition, offset, index) of the rows of these offsets."""
        query = sql.SQL(
            "SELECT {run}, {trigger}, {instrument}::text, kafka_partition, kafka_offset, reading_index FROM {table}"
            " JOIN unnest(%s::int[], %s::bigint[], %s::bigint[]) AS span (p, low, high)"
            " ON kafka_partition = p AND kafka_offset >= low AND kafka_offset < high WHERE incarnation = %s"
        ).format(
            run=sql.Identifier(stream.run),
            trigger=sql.Identifier(stream.trigger),
            instrument=sql.Identifier(stream.instrument),
            table=sql.Identifier(stream.name),
        )
        partitions = sorted(begins)
        spans = (partitions, [begins[p] for p in partitions], [ends[p] for p in partitions], incarnation)
        with self._connection.cursor("raw_rows") as cursor:
            cursor.itersize = ROWS_AT_ONCE
            cursor.execute(query, spans)
            yield from cursor

    def letters(self, topic_id: str, begins: dict[int, int]) -> set[Place]:
        rows = self._all(
            sql.SQL('SELECT partition, "offset", index FROM dead_letters WHERE topic_id = %s'),
            (topic_id,),
        )
        return {(p, offset, index) for p, offset, index in rows if offset >= begins.get(p, 0)}

    def event_times(self, stream: StreamMap, incarnation: int, begins: dict[int, int]) -> tuple[int, int] | None:
        """First and last event time (µs since 1970) stored from these offsets on."""
        query = sql.SQL(
            "SELECT (extract(epoch FROM min({time})) * 1000000)::bigint,"
            " (extract(epoch FROM max({time})) * 1000000)::bigint FROM {table}"
            " JOIN unnest(%s::int[], %s::bigint[]) AS span (p, low) ON kafka_partition = p AND kafka_offset >= low"
            " WHERE incarnation = %s"
        ).format(time=sql.Identifier(stream.time), table=sql.Identifier(stream.name))
        first_us, last_us = self._all(query, (list(begins), list(begins.values()), incarnation))[0]
        return None if first_us is None else (first_us, last_us)

    def readings_by_window(self, stream: StreamMap, size_us: int, low_us: int, high_us: int) -> dict[Window, int]:
        """Raw rows of each instrument in each window that begins in [low, high)."""
        query = sql.SQL(
            "SELECT {instrument}::text, (extract(epoch FROM date_bin(%s, {time}, {epoch})) * 1000000)::bigint AS start,"
            " count(*) FROM {table} WHERE {time} >= {epoch} + %s AND {time} < {epoch} + %s GROUP BY 1, 2"
        ).format(
            instrument=sql.Identifier(stream.instrument),
            time=sql.Identifier(stream.time),
            table=sql.Identifier(stream.name),
            epoch=sql.SQL(EPOCH),
        )
        rows = self._all(query, (interval(size_us), interval(low_us), interval(high_us)))
        return {(instrument, start): count for instrument, start, count in rows}

    def rows_by_window(self, view: ViewMap, low_us: int, high_us: int) -> dict[Window, int]:
        """What the live rows of a tumbling view count, by instrument and window."""
        query = sql.SQL(
            "SELECT {group}::text, (extract(epoch FROM window_start) * 1000000)::bigint, count FROM {view}"
            " WHERE window_start >= {epoch} + %s AND window_start < {epoch} + %s"
        ).format(group=sql.Identifier(view.group[0]), view=sql.Identifier(view.name), epoch=sql.SQL(EPOCH))
        return {
            (group, start): count for group, start, count in self._all(query, (interval(low_us), interval(high_us)))
        }

    def row_count(self, view: ViewMap, low_us: int, high_us: int) -> int:
        """Live rows of a view whose window touches [low, high]."""
        query = sql.SQL(
            "SELECT count(*) FROM {view} WHERE window_end > {epoch} + %s AND window_start <= {epoch} + %s"
        ).format(view=sql.Identifier(view.name), epoch=sql.SQL(EPOCH))
        return int(self._all(query, (interval(low_us), interval(high_us)))[0][0])

    def dirty_windows(self, view: ViewMap) -> set[Window]:
        rows = self._all(
            sql.SQL(
                "SELECT group_values[1], (extract(epoch FROM window_start) * 1000000)::bigint"
                " FROM dirty_windows WHERE view = %s"
            ),
            (view.name,),
        )
        return set(rows)

    def times_by_window(self, stream: StreamMap, size_us: int, low_us: int, high_us: int) -> dict[Window, list[int]]:
        """Event times of each instrument in each window, ascending."""
        query = sql.SQL(
            "SELECT {instrument}::text, (extract(epoch FROM {time}) * 1000000)::bigint AS us FROM {table}"
            " WHERE {time} >= {epoch} + %s AND {time} <= {epoch} + %s ORDER BY us"
        ).format(
            instrument=sql.Identifier(stream.instrument),
            time=sql.Identifier(stream.time),
            table=sql.Identifier(stream.name),
            epoch=sql.SQL(EPOCH),
        )
        found: dict[Window, list[int]] = {}
        for instrument, time_us in self._all(query, (interval(low_us), interval(high_us))):
            found.setdefault((instrument, time_us - time_us % size_us), []).append(time_us)
        return found

    def describe(self) -> str:
        rows = self._all(
            sql.SQL(
                "SELECT current_setting('server_version'), current_database(),"
                " (SELECT extversion FROM pg_extension WHERE extname = 'timescaledb')"
            )
        )
        version, name, timescale = rows[0]
        return f"{name}: PostgreSQL {version}, TimescaleDB {timescale or 'missing'}"

    def rights(self, table: str) -> tuple[str, bool]:
        """Who we are here, and whether we could write to the table."""
        role, writes = self._all(
            sql.SQL("SELECT current_user::text, has_table_privilege(to_regclass(%s), 'INSERT')"), (table,)
        )[0]
        return role, bool(writes)

    def _all(self, query: sql.Composable, values: tuple[Any, ...] = ()) -> list[Any]:
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(query, values)
                return cursor.fetchall()
        except psycopg2.Error as error:
            raise FailedError(
                f"the database refuses a question of ours: {str(error).strip().splitlines()[0]}"
            ) from error


def interval(us: int) -> str:
    """Exact: PostgreSQL counts microseconds in integers, too."""
    return f"{us} microseconds"
