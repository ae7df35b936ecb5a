"""The command line: what can be asked of Strobe, with an example for each. Wires; the work is in the other files."""

import os
import sys
from typing import Annotated

import typer

from cli.failure import FailedError, UserMistakeError

app = typer.Typer(
    name="strobe",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


@app.callback()
def strobe() -> None:
    """Instrument readings through Kafka and continuous views into TimescaleDB, exactly once."""


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
        app(prog_name="strobe")
    except UserMistakeError as mistake:
        if os.environ.get("STROBE_DEBUG"):
            raise
        print(f"strobe: {mistake}", file=sys.stderr)
        return 2
    except FailedError as failure:
        if os.environ.get("STROBE_DEBUG"):
            raise
        print(f"strobe: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
