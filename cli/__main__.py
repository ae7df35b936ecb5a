"""The command line: what can be asked of Strobe, with an example for each. Wires; the work is in the other files."""

import json
import os
import sys
import time
from typing import Annotated

import typer
from typer.exceptions import TyperException

from cli.failure import FailedError, UserMistakeError

app = typer.Typer(name="strobe", add_completion=False, pretty_exceptions_enable=False)
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object instead of lines.")]


@app.callback(invoke_without_command=True)
def strobe(context: typer.Context) -> None:
    """Instrument readings through Kafka and continuous views into TimescaleDB, exactly once."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command(
    epilog="Examples: ./strobe up | ./strobe up -d | ./strobe up --for 60 --json"
    " | ./strobe up --kafka broker:9092 --no-producer"
)
def up(
    *,
    kafka: Annotated[str | None, typer.Option(envvar="STROBE_KAFKA", help="Use this Kafka: host:port.")] = None,
    database: Annotated[
        str | None, typer.Option(envvar="STROBE_DATABASE", help="Use this TimescaleDB: URL of strobe_owner.")
    ] = None,
    registry: Annotated[
        str | None, typer.Option(envvar="STROBE_REGISTRY", help="Use this schema registry: URL.")
    ] = None,
    instruments: Annotated[int, typer.Option(help="Monitors of the simulated ring.")] = 120,
    rate: Annotated[float, typer.Option(help="Triggers per second.")] = 10.0,
    sources: Annotated[int, typer.Option(help="Crates that read the monitors.")] = 4,
    seed: Annotated[int, typer.Option(help="Same seed, same ring.")] = 1,
    no_producer: Annotated[bool, typer.Option("--no-producer", help="Instruments of your own send.")] = False,
    for_s: Annotated[float | None, typer.Option("--for", metavar="SECONDS", help="Stop and compare then.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --for: the last line is one JSON object.")] = False,
    detached: Annotated[bool, typer.Option("-d", "--detach", help="In the background; ./strobe down ends it.")] = False,
) -> None:
    """Bring everything up: servers, topics, tables, producer, processors, sinks. Ctrl-C stops all, losing nothing."""
    from cli import daemon
    from cli.home import Home
    from cli.pipeline import Ring
    from cli.up import Wanted
    from cli.up import up as run

    ring = None if no_producer else Ring(instruments, rate, sources, seed)
    wanted = Wanted(kafka, database, registry, ring, for_s, as_json)
    home = Home.from_environ(os.environ)
    if not detached:
        raise typer.Exit(run(home, wanted))
    wanted.check()
    daemon.start(home, wanted.arguments(), wanted.named(), print)
    print("up; see ./strobe status, ./strobe psql, ./strobe logs -f raw-sink; end it with ./strobe down")


@app.command(epilog="Example: ./strobe down")
def down() -> None:
    """Stop what `up -d` started: in order, losing nothing."""
    from cli import daemon
    from cli.home import Home

    daemon.stop(Home.from_environ(os.environ), print)


@app.command(epilog="Examples: ./strobe status | ./strobe status --json | jq .stages")
def status(*, as_json: AsJson = False) -> None:
    """Rate, lag, freshness, errors and state of each stage. Exit code 1: it does not run, or a stage is down."""
    from cli import daemon
    from cli.home import Home
    from cli.overview import as_mapping, read_overview

    home = Home.from_environ(os.environ)
    overview = read_overview(home.overview)
    runs = daemon.running(home) is not None
    if overview is None or not runs:
        if as_json:
            print(json.dumps({"phase": "down", "home": str(home.path), "stages": []}))
        raise FailedError(f"nothing runs in {home.path}; start it with ./strobe up")
    if as_json:
        print(json.dumps(as_mapping(overview)))
    else:
        from rich.console import Console

        from cli.screen import whole

        Console().print(whole(overview))
    raise typer.Exit(0 if overview.sound else 1)


@app.command(epilog="Examples: ./strobe logs raw-sink | ./strobe logs -f processors | ./strobe logs kafka")
def logs(
    stage: Annotated[str, typer.Argument(help="producer, processors, raw-sink, view-sink, kafka, supervisor …")],
    *,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", help="How many of the last lines.")] = 40,
) -> None:
    """Show the end of a stage's or server's log."""
    from cli.home import Home
    from cli.logs import logs as show

    show(Home.from_environ(os.environ), stage, follow=follow, lines=lines)


@app.command(epilog="Examples: ./strobe psql | ./strobe psql -c 'SELECT * FROM bpm_latest'")
def psql(
    *,
    command: Annotated[str | None, typer.Option("-c", "--command", metavar="SQL", help="Run this and leave.")] = None,
    role: Annotated[str, typer.Option(help="reader, writer or owner.")] = "reader",
) -> None:
    """Open psql on the database, as a reader."""
    from cli.home import Home
    from cli.psql import psql as become

    become(Home.from_environ(os.environ), command=command, role=role)


@app.command(epilog="Examples: ./strobe verify | ./strobe verify --json")
def verify(*, as_json: AsJson = False) -> None:
    """Compare topics and tables over all that the topics still hold. Exit code 1: something is lost or twice."""
    from cli import daemon
    from cli.home import Home
    from cli.overview import read_overview
    from cli.proof import begin_proof
    from cli.servers import read_addresses
    from schemas.settings import Settings

    home = Home.from_environ(os.environ)
    overview = read_overview(home.overview)
    if overview is None or daemon.running(home) is None:
        raise UserMistakeError("the servers must run: ./strobe up, or ./strobe up -d --no-producer")
    views = Settings.from_environ(os.environ).views
    settled_us = (time.time_ns() // 1000) - 60_000_000  # windows of the last minute may still grow
    proof = begin_proof(read_addresses(home.addresses), views, whole=True)
    found = proof.end(overview, drained=True, settled_us=settled_us)
    print(json.dumps(found.as_json()) if as_json else "\n".join(found.lines()))
    raise typer.Exit(0 if found.good else 1)


@app.command(epilog="Examples: ./strobe doctor | ./strobe doctor --json")
def doctor(*, as_json: AsJson = False) -> None:
    """Look for what could be in the way, with a remedy for each. Exit code 1: there is a problem."""
    from cli.doctor import look
    from cli.home import Home

    good = True
    found = []
    for check in look(Home.from_environ(os.environ), os.environ):
        good = good and check.good
        found.append({"name": check.name, "good": check.good, "found": check.found, "remedy": check.remedy})
        if not as_json:
            remedy = "" if check.good else f"  →  {check.remedy}"
            print(f"{'ok' if check.good else 'PROBLEM':8}{check.name:11} {check.found}{remedy}", flush=True)
    if as_json:
        print(json.dumps({"good": good, "checks": found}))
    raise typer.Exit(0 if good else 1)


@app.command("test", epilog="Example: ./strobe test --fast -- -k codec")
def run_checks(
    *,
    fast: Annotated[bool, typer.Option("--fast", help="Leave out what needs servers: about 20 s.")] = False,
    long: Annotated[bool, typer.Option("--long", help="Add the tests that are not part of the ordinary run.")] = False,
    pytest_arguments: Annotated[list[str] | None, typer.Argument(help="After --: handed on to pytest.")] = None,
) -> None:
    """Run every check that a change must pass: lint, types, import contracts, tests."""
    from cli import checks

    raise typer.Exit(checks.test(fast=fast, long=long, pytest_arguments=pytest_arguments or []))


def main() -> int:
    """Exit codes: 0 done, 1 it failed, 2 a mistake in what was asked."""
    try:
        code = app(prog_name="./strobe", standalone_mode=False)
    except typer.Abort:
        return 130
    except TyperException as mistake:
        told = " ".join(mistake.format_message().split())
        print(f"strobe: {told.rstrip('.')}; see ./strobe --help", file=sys.stderr)
        return 2
    except (UserMistakeError, FailedError) as trouble:
        if os.environ.get("STROBE_DEBUG"):
            raise
        print(f"strobe: {trouble}", file=sys.stderr)
        return 2 if isinstance(trouble, UserMistakeError) else 1
    except KeyboardInterrupt:
        return 130
    except Exception as bug:
        if os.environ.get("STROBE_DEBUG"):
            raise
        told = f"{type(bug).__name__}: {bug}".splitlines()[0]
        print(f"strobe: this should not have happened ({told}); STROBE_DEBUG=1 shows where", file=sys.stderr)
        return 1
    return int(code or 0)


if __name__ == "__main__":
    sys.exit(main())
