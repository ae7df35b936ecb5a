"""How an overview looks: one table that stays in place on a terminal, one line a stage now and then elsewhere."""

import re
import sys
import time
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cli.overview import Overview, StageView

PLAIN_EVERY_S = 10.0  # a log is read later: a line a stage every 10 s is plenty
PROGRESS_EVERY_S = 5.0
DIGITS = re.compile(r"\d+")
COLOURS = {"running": "green", "starting": "yellow", "backing off": "red", "stopping": "yellow"}

EXAMPLES = (  # short enough for 80 columns
    "SELECT * FROM bpm_latest",
    "SELECT window_start, x_mean FROM bpm_1s ORDER BY 1 DESC",
    "SELECT * FROM pipeline_health ORDER BY silence_s DESC",
    "SELECT reason, count(*) FROM dead_letters GROUP BY 1",
)


def number(value: float | None, unit: str = "") -> str:
    """Three digits are enough on a screen; a dash where nothing is known."""
    if value is None:
        return "-"
    text = f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
    return f"{text} {unit}".rstrip()


def stage_line(stage: StageView) -> str:
    """One stage in one line, for logs."""
    parts = [
        f"{stage.stage:11} {stage.state:11}",
        f"{number(stage.rate_hz, '/s'):>10}",
        f"lag {number(stage.lag)}",
        f"fresh {number(stage.freshness_s, 's')}",
        f"errors {number(stage.errors)}",
        f"restarts {stage.restarts}",
    ]
    return "  ".join(parts) + (f"  {stage.note}" if stage.note else "")


def table(overview: Overview) -> Table:
    shown = Table(box=None, padding=(0, 2, 0, 0), title=f"Strobe, {overview.phase}  ({overview.home})")
    shown.title_justify = "left"
    shown.add_column("stage", no_wrap=True)
    shown.add_column("state", no_wrap=True)
    for name in ("rate", "lag", "fresh", "errors", "restarts"):
        shown.add_column(name, justify="right", no_wrap=True)
    for stage in overview.stages:
        shown.add_row(
            stage.stage,
            Text(stage.state, style=COLOURS.get(stage.state, "dim")),
            number(stage.rate_hz, "/s"),
            number(stage.lag),
            number(stage.freshness_s, "s"),
            Text(number(stage.errors), style="red" if stage.errors else ""),
            Text(str(stage.restarts), style="red" if stage.restarts else ""),
        )
    return shown


def where_next(overview: Overview) -> list[str]:
    """What to type next, each line as it is typed."""
    lines = [f'./strobe psql -c "{sql}"' for sql in EXAMPLES]
    return [*lines, f"Kafka {overview.kafka}", f"registry {overview.registry}", f"database {overview.database}"]


def whole(overview: Overview) -> RenderableType:
    notes = [Text(f"{stage.stage}: {stage.note}", style="yellow") for stage in overview.stages if stage.note]
    parts: list[RenderableType] = [table(overview), *notes]
    if overview.phase == "running":
        parts.append(Text("\n".join(["", *where_next(overview)]), style="dim", no_wrap=True, overflow="ignore"))
        parts.append(Text("Ctrl-C stops all in order, losing nothing."))
    if overview.message:
        parts.append(Text(overview.message, style="yellow"))
    return Group(*parts)


class Screen:
    """Shows overviews and lines. On a terminal the table stays below the lines; elsewhere all is lines.

    For example::

        with Screen(sys.stdout) as screen:
            screen.say("Kafka answers")
            screen.show(overview)
    """

    def __init__(self, stream: TextIO = sys.stdout) -> None:
        self._console = Console(file=stream, highlight=False)
        self._live: Live | None = None
        self._plain_at = 0.0
        self._told_next = False
        self._progress: dict[str, tuple[str, float]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    def say(self, line: str) -> None:
        if self._console.is_terminal:
            self._console.print(Text(line))
        else:
            print(line, file=self._console.file, flush=True)

    def progress(self, server: str, text: str) -> None:
        """What a server is at; a download says so twice a second, which no log wants to keep."""
        now_s = time.monotonic()
        told, told_s = self._progress.get(server, ("", 0.0))
        kind = DIGITS.sub("", text)
        if kind != told or now_s - told_s >= PROGRESS_EVERY_S:
            self._progress[server] = (kind, now_s)
            self.say(f"{server}: {text}")

    def show(self, overview: Overview) -> None:
        if self._console.is_terminal:
            if self._live is None:
                self._live = Live(console=self._console, auto_refresh=False, transient=False)
                self._live.start()
            self._live.update(whole(overview), refresh=True)
            return
        if overview.phase == "running" and not self._told_next:
            self._told_next = True
            for line in where_next(overview):
                self.say(line)
        if time.monotonic() - self._plain_at >= PLAIN_EVERY_S:
            self._plain_at = time.monotonic()
            for stage in overview.stages:
                self.say(stage_line(stage))
