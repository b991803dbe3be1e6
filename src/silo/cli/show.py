"""What all commands share: tables on stdout, progress bars on stderr (on a terminal only), paths from options.

Ids, owners, titles, messages and text come from data that anybody may have written. Whatever is shown passes through
`visible`, so that none of it can command a terminal, forge a line or turn the order of letters round.
"""

from __future__ import annotations

import argparse
import csv
import glob
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from silo.errors import SiloError
from silo.progress import Advance

_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0, DEL, C1: commands to a terminal
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufeff\uffa0"  # nothing is seen of them
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f"  # zero width, line separators, bidirectional overrides and isolates
    "\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"  # annotations, tags
    "\ud800-\udfff]"  # halves of a character, which no output can encode
)


def visible(text: str, *, keep: str = "") -> str:
    """Data as it may be shown: control, invisible and direction characters as escapes such as `\\x1b` and `\\u202e`.

    `keep` are those that may stay: a newline and a tab where text is shown as text.
    """
    return _INVISIBLE.sub(lambda match: match[0] if match[0] in keep else _escape(match[0]), text)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def print_json(value: Any) -> None:
    """One JSON value on stdout; what `visible` would change is written as the escapes of JSON, which are exact."""
    text = json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False)
    print(_INVISIBLE.sub(lambda match: match[0] if match[0] == "\n" else json.dumps(match[0])[1:-1], text))


def facts(title: str, values: Mapping[str, Any], *, as_json: bool) -> None:
    """Names and values, as JSON or as a table of two columns."""
    if as_json:
        print_json(values)
    else:
        table(title, ("what", "value"), [[name, str(value)] for name, value in values.items()])


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table on stdout; numbers are aligned at the right and grouped by thousands."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(header_style="bold")
    for at, name in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[at], int | float | None) for row in rows)
        made.add_column(Text(visible(name)), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(visible(_cell(value))) for value in row))
    console = Console() if sys.stdout.isatty() else Console(width=140)
    console.print(Text(visible(title), style="bold"), made)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.3g}" if abs(value) < 10 else f"{value:,.1f}"


def say(message: str, *, quiet: bool = False) -> None:
    """A line of talk on stderr."""
    if not quiet:
        print(visible(message), file=sys.stderr)


def complain(error: SiloError) -> int:
    """The two lines of an error on stderr; gives its exit status."""
    for line in (f"error: {error}", f"hint: {error.hint}"):
        say(" ".join(line.splitlines()))
    return int(error.status)


def complain_of_checks(what: str, failed: Sequence[str], unmade: Sequence[str]) -> int:
    """Say which checks of an erasure failed or were not made; the exit status is 0 if all were made and passed."""
    status = 0
    if unmade:
        status = complain(SiloError("check-not-made", f"{what}: not checked: {', '.join(unmade)}"))
    if failed:
        status = complain(SiloError("check-failed", f"{what}: failed: {', '.join(failed)}"))
    return status


def some(before: str, lines: Sequence[str], *, quiet: bool = False, most: int = 5) -> None:
    """The first lines of talk, and how many more there would be."""
    for line in lines[:most]:
        say(before + line, quiet=quiet)
    if len(lines) > most:
        say(f"{before}{len(lines) - most:,} more, which --json lists", quiet=quiet)


@contextmanager
def progress(*, quiet: bool) -> Iterator[Advance]:
    """Bars with an ETA, one per stage."""
    if quiet or not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<12}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def advance(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(visible(stage), total=max(total, 1))
            bars.update(tasks[stage], completed=done if total else 1, total=max(total, 1))

        yield advance


def read_bytes(path: str) -> bytes:
    """The bytes of a file, or of standard input for -."""
    try:
        return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except FileNotFoundError:
        raise SiloError("input-missing", f"there is no file {path}") from None
    except OSError as error:
        raise SiloError("input-unreadable", f"{path}: {error.strerror}") from None


def read_text(path: str) -> str:
    """The text of a file, or of standard input for -."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError:
        raise SiloError("utf8-invalid", f"{path} is not UTF-8") from None


def read_words(given: str) -> str:
    """A prompt or a question that was given on the command line, from standard input where it is `-`."""
    try:
        return (sys.stdin.buffer.read() if given == "-" else os.fsencode(given)).decode()
    except UnicodeError:
        raise SiloError("utf8-invalid", "the text is not UTF-8") from None


def add_html(parser: argparse.ArgumentParser) -> None:
    """The option of commands whose result can be handed to people."""
    parser.add_argument("--html", metavar="FILE", help="also write it as one HTML page that needs nothing else")


def page_path(arguments: argparse.Namespace) -> Path | None:
    """Where the page of --html goes; a place where none can be written is refused before anything is computed."""
    if not arguments.html:
        return None
    from silo.page import check_page_path

    check_page_path(Path(arguments.html))
    return Path(arguments.html)


def add_csv(parser: argparse.ArgumentParser) -> None:
    """The option of commands that print lists."""
    parser.add_argument("--csv", action="store_true", help="print the rows as CSV on stdout, for a spreadsheet")


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Rows for a spreadsheet on stdout; a text that it would take for a formula gets an apostrophe before it."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_csv_cell(value) for value in row])


def _csv_cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return f"'{visible(value)}" if value.startswith(("=", "+", "-", "@", "\t", "\r")) else visible(value)


def add_verify(parser: argparse.ArgumentParser) -> None:
    """The option of commands that open a model."""
    parser.add_argument("--verify", action="store_true", help="read every byte of the model before it is used")


def home_path(arguments: argparse.Namespace, kind: str) -> Path:
    """--out, or a folder of the home named after the recipe."""
    if arguments.out:
        return Path(arguments.out)
    if not arguments.recipe:
        raise SiloError("usage", "--out is needed where there is no recipe: where should the result go?")
    return home(arguments) / kind / Path(arguments.recipe).stem


def home(arguments: argparse.Namespace) -> Path:
    """The home folder: --home, $SILO_HOME or ./silo-home."""
    return Path(arguments.home or os.environ.get("SILO_HOME") or "silo-home")


def literal_paths(paths: list[str]) -> list[str]:
    """Paths given on the command line are names, not patterns, and relative to where the command runs."""
    return [glob.escape(str(Path(path).expanduser().absolute())) for path in paths]
