"""`python -m processors` runs the worker, `python -m processors setup` makes its topics and schemas, and compiles.

Exit codes: 0 done or stopped; 1 a server is away or refuses, or the worker failed; 2 a file or a setting is wrong.
"""

import argparse
import logging
import os
import sys
import time
from collections.abc import Mapping
from typing import NoReturn

from processors.app import make_app
from processors.plan import Plan, load_views
from processors.setup import ChangedViewError, setup
from processors.syntax import ViewError
from processors.warm_up import warm_up
from schemas.admin import Admin, AdminError, WrongTopicError
from schemas.registry import Registry, RegistryAwayError, RegistryError
from schemas.settings import Settings, SettingsError
from schemas.stream import SchemaError, Stream, load_streams

DONE, SERVER_TROUBLE, WRONG_SETUP = 0, 1, 2
UNSAID_S_MAX = 1.0  # kernels that are compiled already are read within this
# Libraries that tell every step, and while a broker is away a hundred lines a second: what matters we say ourselves.
TALKATIVE = ("faust", "mode", "aiokafka", "httpx2")


def main(arguments: list[str], environ: Mapping[str, str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m processors", description="Continuous views: as processors/views/*.sql say."
    )
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("setup", help="register every view's rows, make its topics, compile, then end")
    chosen = parser.parse_args(arguments)
    try:
        settings = Settings.from_environ(environ)
        if chosen.command == "setup":
            _set_up(settings)
            return DONE
        _run(settings)
    except RegistryAwayError as error:
        return _fail(error, SERVER_TROUBLE)
    except (SettingsError, SchemaError, ViewError, ChangedViewError, RegistryError, WrongTopicError) as error:
        return _fail(error, WRONG_SETUP)
    except AdminError as error:
        return _fail(error, SERVER_TROUBLE)


def _set_up(settings: Settings) -> None:
    streams = load_streams(settings.streams)
    plans = load_views(settings.views, streams)
    for line in setup(plans, streams, settings, Registry(settings.registry), Admin(settings.kafka)):
        sys.stdout.write(line + "\n")
    compile_kernels(streams, plans)


def compile_kernels(streams: Mapping[str, Stream], plans: Mapping[str, Plan]) -> None:
    """Have what is compiled on disk before the stages start; say so where it took a while."""
    begin_s = time.monotonic()
    warm_up(streams, plans)
    took_s = time.monotonic() - begin_s
    if took_s > UNSAID_S_MAX:
        sys.stdout.write(f"compiling kernels, once: {took_s:.0f} s\n")


def _run(settings: Settings) -> NoReturn:
    logging.basicConfig(
        level=settings.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    if settings.log_level != "debug":
        for name in TALKATIVE:
            logging.getLogger(name).setLevel(logging.CRITICAL)
    worker = make_app(settings).Worker(quiet=True, override_logging=False, redirect_stdouts=False)
    worker.execute_from_commandline()  # leaves by SystemExit


def _fail(error: Exception, code: int) -> int:
    sys.stderr.write(f"processors: {error}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
