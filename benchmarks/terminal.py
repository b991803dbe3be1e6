"""A picture of what a command prints, colours included, as it looks on a terminal.

python benchmarks/terminal.py docs/results/generate.svg --title "silo generate" -- silo generate ...
"""

from __future__ import annotations

import argparse
import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--title", default="")
    parser.add_argument("--columns", type=int, default=110)
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    shown = printed(arguments.command, arguments.columns)
    console = Console(record=True, width=arguments.columns, file=io.StringIO())
    console.print(Text.from_ansi(shown))
    picture = console.export_svg(title=arguments.title or arguments.command[0])
    arguments.out.write_text(without_fonts(picture), encoding="utf-8")
    return 0


def printed(command: list[str], columns: int) -> str:
    """The command's output; progress, which goes to the other stream, is left out."""
    environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(columns)}
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def without_fonts(picture: str) -> str:
    """A picture fetches nothing: the viewer's own monospaced font does."""
    return re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL).replace("Fira Code, monospace", "monospace")


if __name__ == "__main__":
    sys.exit(main())
