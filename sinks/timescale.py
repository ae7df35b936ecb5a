"""Connections to TimescaleDB, and what an error of the database means to us: wait, or stop with one line.

The only module that knows how psycopg2 reports trouble; what is read and written stands in the files that use it.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg2
from psycopg2 import errors
from psycopg2.extensions import connection as Connection  # noqa: N812 - a class, whatever its name
from psycopg2.extensions import cursor as Cursor  # noqa: N812

CONNECT_S = 5  # one try; a server on the same network answers in milliseconds
WAIT_S = 30.0  # at start: how long a server that starts together with us is waited for
RETRY_FIRST_S, RETRY_MAX_S = 0.2, 5.0  # pause after the first failure, doubled up to the longest

# A sink that is stopped (SIGSTOP, a frozen machine) inside its transaction must not hold the position for ever.
IDLE_IN_TRANSACTION_MS = 10_000
LOCK_MS = 5_000  # a batch that waits longer for another sink's lock gives up and is read again
STATEMENT_MS = 60_000  # a COPY of a batch takes tens of ms; beyond this the server is in trouble
DEAD_PEER_MS = 10_000  # unanswered bytes before the connection counts as lost

STARTING = ("starting up", "shutting down", "recovery", "too many clients", "remaining connection slots")


class DatabaseAwayError(RuntimeError):
    """The database does not answer, or cannot do it now: nothing is wrong with the data, try again later."""


class DatabaseSetupError(RuntimeError):
    """The database answers, but is not set up for us: what, and the remedy, in one line."""


def connect(url: str, name: str, *, relaxed: bool = False) -> Connection:
    """One try. `name` is shown in pg_stat_activity.

    `relaxed` turns synchronous_commit off: a crash of the server may then take the transactions of the last 0.6 s,
    each as a whole. Only for who keeps the position in the transaction of the rows, as the raw sink does: both are
    gone, and the rows are read from Kafka again. A position kept elsewhere (the view sink's, in Kafka) would stand
    behind rows that are lost for ever.
    """
    options = {
        "timezone": "UTC",
        "lock_timeout": LOCK_MS,
        "statement_timeout": STATEMENT_MS,
        "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION_MS,
        "synchronous_commit": "off" if relaxed else "on",
    }
    try:
        return psycopg2.connect(
            url,
            application_name=name,
            connect_timeout=CONNECT_S,
            tcp_user_timeout=DEAD_PEER_MS,
            keepalives_idle=DEAD_PEER_MS // 1000,
            options=" ".join(f"-c {key}={value}" for key, value in options.items()),
        )
    except psycopg2.OperationalError as error:
        raise _refusal(url, error) from None
    except psycopg2.ProgrammingError as error:  # the URL itself
        raise DatabaseSetupError(f"STROBE_DATABASE is no database URL ({_line(error)}); {_EXAMPLE}") from None


_EXAMPLE = "write postgresql://role:password@host:port/strobe"


def connect_patiently(url: str, name: str, *, wait_s: float = WAIT_S) -> Connection:
    """Try until there is a connection, for at most `wait_s`; a refusal is final at once."""
    until = time.monotonic() + wait_s
    pause_s = RETRY_FIRST_S
    while True:
        try:
            return connect(url, name)
        except DatabaseAwayError as error:
            if time.monotonic() + pause_s > until:
                raise DatabaseAwayError(f"{error} (tried for {wait_s:g} s); start it, or set STROBE_DATABASE") from None
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, RETRY_MAX_S)


@contextmanager
def transaction(connection: Connection) -> Iterator[Cursor]:
    """A transaction of its own: committed at the end, rolled back on any exception, which is told as ours.

    An error in COMMIT leaves open whether it took place: whoever must know reads the position back.
    """
    try:
        with connection.cursor() as cursor:
            yield cursor
        connection.commit()
    except psycopg2.Error as error:
        _roll_back(connection)
        raise translated(error) from error
    except BaseException:
        _roll_back(connection)
        raise


def translated(error: psycopg2.Error) -> Exception:
    """What an error of the database means: wait (DatabaseAwayError), set-up (DatabaseSetupError), or our own bug."""
    if isinstance(error, (errors.UndefinedTable, errors.UndefinedColumn, errors.InvalidSchemaName)):
        return DatabaseSetupError(f"the database lacks something ({_line(error)}); run `python -m sinks migrate`")
    if isinstance(error, (errors.InsufficientPrivilege, errors.ReadOnlySqlTransaction)):
        return DatabaseSetupError(
            f"{_line(error)}; let STROBE_DATABASE name the role strobe_writer (migrate: strobe_owner), on the primary"
        )
    if isinstance(error, (psycopg2.OperationalError, psycopg2.InterfaceError)):
        return DatabaseAwayError(_line(error))  # includes locks, deadlocks, time-outs, a full disk, a shutdown
    return error


def place(url: str) -> str:
    """Host, port and database of a URL: what may be shown."""
    try:
        parts = urlsplit(url)
        port = parts.port or 5432
    except ValueError:
        return "the database"
    return f"{parts.hostname or 'localhost'}:{port}{parts.path}"


def pauses() -> Callable[[], float]:
    """Seconds to wait after each failure in a row."""
    pause_s = RETRY_FIRST_S / 2

    def following() -> float:
        nonlocal pause_s
        pause_s = min(pause_s * 2, RETRY_MAX_S)
        return pause_s

    return following


def _refusal(url: str, error: psycopg2.OperationalError) -> Exception:
    """A failed connection carries no SQLSTATE, so here, and only here, the text decides: did the server answer?"""
    text = _line(error)
    if "FATAL:" in text and not any(word in text for word in STARTING):
        why = text.split("FATAL:")[1].strip()
        return DatabaseSetupError(
            f"the database {place(url)} refuses: {why}; correct STROBE_DATABASE ({_EXAMPLE.removeprefix('write ')}),"
            " or make role and database (see `python -m sinks migrate --help`)"
        )
    reason = text.rpartition("failed: ")[2].split(" Is the server")[0]  # of libpq's hint for beginners
    return DatabaseAwayError(f"the database {place(url)} does not answer ({reason})")


def _roll_back(connection: Connection) -> None:
    try:
        connection.rollback()
    except psycopg2.Error:
        connection.close()


def _line(error: psycopg2.Error) -> str:
    return " ".join(str(error).split()) or type(error).__name__
