"""What all commands share: tables on stdout, progress bars on stderr (on a terminal only), paths from options.

Ids, owners, titles, messages and text come from data that anybody may have written. Whatever is shown passes through
`visible`, so that none of it can command a terminal, forge a line or turn the order of letters round.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from silo.cli.arguments.config import HOME
from silo.errors import SiloError
from silo.placement import DEVICES, DTYPES
from silo.progress import Advance

RIC_VARIANTS = ("basic", "ensemble", "concat", "concat-next")
"""Those of `silo.inference.settings`, which is too heavy for a parser."""

SELECTORS = {
    "document": "one document: id:<silo's id>, external:<the record's own>, or plain where that is clear",
    "owner": "everything of an owner",
    "source": "everything from a source",
    "license": "everything under a licence",
    "domain": "everything of a domain",
    "query": "documents that contain this text (case and white space aside)",
}
"""What names documents of a store or a corpus."""

_FORMULA = ("=", "+", "-", "@")

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


def add_csv(parser: argparse.ArgumentParser) -> None:
    """The option of commands whose result is a list."""
    parser.add_argument("--csv", metavar="FILE", help="write the whole table here as CSV; - for standard output")


def write_csv(name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table for spreadsheets; text that begins like a formula is led by an apostrophe, so that none computes it."""
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_plain(value) for value in row] for row in rows)
    if name == "-":
        print(text.getvalue(), end="")
    else:
        Path(name).write_text(text.getvalue(), encoding="utf-8")


def _plain(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    shown = visible(value)
    return f"'{shown}" if shown[:1] in _FORMULA else shown


def say(message: str, *, quiet: bool = False) -> None:
    """A line of talk on stderr."""
    if not quiet:
        print(visible(message), file=sys.stderr)


def note_compiling(*, quiet: bool = False) -> None:
    """Say that the decode engine is compiled first, where that has not been done on this machine."""
    from silo.lm.engine.engine import is_compiled

    if not is_compiled():
        say("compiling the decode engine, once, about ten seconds", quiet=quiet)


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


def reading(facts: Mapping[str, Any], *, quiet: bool = False) -> None:
    """What was left out of folders, and that records were named by their place, in one line each."""
    from silo.sources.reader.skipped import Skipped, describe_skipped

    if line := describe_skipped(map(Skipped.from_json, facts["skipped_files"])):
        say(line, quiet=quiet)
    if derived_ids := facts["derived_ids"]:
        what = "record has no id: it is" if derived_ids == 1 else "records have no id: they are"
        say(f"{derived_ids:,} {what} named by file and line, so give ids if the file will change", quiet=quiet)


@contextmanager
def progress(*, quiet: bool) -> Iterator[Advance]:
    """Bars with the time that is left, one per stage; nothing where nobody looks."""
    if quiet or not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console

    from silo.cli.bars import draw_bars

    with draw_bars(Console(stderr=True), visible) as advance:
        yield advance


def read_bytes(path: str) -> bytes:
    """The bytes of a file, or of standard input for -."""
    try:
        return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except FileNotFoundError:
        from silo.files import nearest_path

        raise SiloError("input-missing", f"there is no file {path}", nearest_path(Path(path))) from None
    except OSError as error:
        raise SiloError("input-unreadable", f"{path}: {error.strerror}") from None


def output_file(name: str | None) -> Path | None:
    """A file that an option names to be written: refused before anything is done if it cannot be."""
    if name is None:
        return None
    path = Path(name)
    if path.is_dir():
        raise SiloError("usage", f"{path} is a folder, and a file is to be written", "give the name of a file")
    if not path.absolute().parent.is_dir():
        from silo.files import nearest_path

        raise SiloError("input-missing", f"there is no folder for {path}", nearest_path(path.absolute().parent))
    return path


def require_output(name: str | None) -> None:
    """Refuse a file that cannot be written, before anything is done; - is standard output."""
    if name != "-":
        output_file(name)


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


def add_verify(parser: argparse.ArgumentParser) -> None:
    """The option of commands that open a model."""
    parser.add_argument("--verify", action="store_true", help="read every byte of the model before it is used")


def add_selectors(parser: argparse.ArgumentParser) -> None:
    """The options that name documents."""
    for name, text in SELECTORS.items():
        parser.add_argument(f"--{name}", default="", metavar="X", help=text)


def add_device(parser: argparse.ArgumentParser) -> None:
    """The options of commands that compute with a network; `main` tells the process of them."""
    where = "where networks compute; cpu without it, or where a store's keys were made"
    parser.add_argument("--device", choices=DEVICES, help=where)
    number = "the numbers they compute in; float32 on the processor without it, elsewhere that of the weights"
    parser.add_argument("--dtype", choices=DTYPES, help=number)
    parser.add_argument("--threads", type=int, metavar="N", help="cores that a network may use; all without it")


def add_ray(parser: argparse.ArgumentParser) -> None:
    """The option of commands that several machines can share."""
    where = "a Ray cluster that does the work: HOST:PORT, auto, or local for one on this machine"
    parser.add_argument("--ray", metavar="ADDRESS", help=where)


def home_path(arguments: argparse.Namespace, kind: str) -> Path:
    """--out, or a folder of the home named after the recipe."""
    if arguments.out:
        return Path(arguments.out)
    if not arguments.recipe:
        raise SiloError("usage", "--out is needed where there is no recipe: where should the result go?")
    return home(arguments) / kind / Path(arguments.recipe).stem


def home(arguments: argparse.Namespace) -> Path:
    """The home folder: --home, or what else states one, or ./silo-home."""
    return Path(arguments.home or HOME)


def literal_paths(paths: list[str]) -> list[str]:
    """Paths given on the command line are names, not patterns, and relative to where the command runs."""
    return [glob.escape(str(Path(path).expanduser().absolute())) for path in paths]
