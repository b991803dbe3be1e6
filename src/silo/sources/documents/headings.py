"""The sections of plain text with headings: Markdown and reStructuredText, by the lines at which they begin."""

from __future__ import annotations

import re
from collections.abc import Iterator

from silo.sources.documents.parsed import bound_places, short_label

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_HASHES = re.compile(r" {0,3}#{1,6}[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*")
_UNDERLINES = {".md": re.compile(r" {0,3}(?:=+|-+)\s*"), ".rst": re.compile(r"([=\-~^\"'`#*+.:_])\1{2,}\s*")}
_FRONT_MATTER = re.compile(r"---[ \t]*\n(?:(?!---[ \t]*\n).*\n){0,200}---[ \t]*\n")
_NO_TITLE = re.compile(r"\s*(?:[-*+>|] |\d+[.)] |\||$)")
_MARKS = re.compile(r"[*_`]+|!?\[([^\]]*)\]\([^)]*\)")


def find_sections(text: str, ending: str) -> tuple[tuple[int, str], ...]:
    """Places at the headings of a normalised text; none for an ending whose headings nobody marks."""
    rule = ".md" if ending in (".md", ".markdown") else ending
    if rule not in _UNDERLINES:
        return ()
    found = _marked_lines(text, rule)
    labels = ((line, short_label(_MARKS.sub(lambda mark: mark[1] or "", title))) for line, title in found)
    return bound_places((line, f"section {label}") for line, label in labels if label)


def _marked_lines(text: str, rule: str) -> Iterator[tuple[int, str]]:
    """Headings by their line: `# Title` in Markdown, and lines that are underlined."""
    lines = text.split("\n")
    front = _FRONT_MATTER.match(text) if rule == ".md" else None
    fence = ""
    for at in range(front[0].count("\n") if front else 0, len(lines)):
        line = lines[at]
        if rule == ".md" and (mark := _FENCE.match(line)):
            if not fence:
                fence = mark[1]
            elif mark[1].startswith(fence):
                fence = ""
        elif fence:
            continue
        elif rule == ".md" and (title := _HASHES.fullmatch(line)):
            yield at, title[1]
        elif at + 1 < len(lines) and _is_underlined(line, lines[at + 1], rule):
            yield at, line


def _is_underlined(line: str, following: str, rule: str) -> bool:
    underline = _UNDERLINES[rule]
    if not underline.fullmatch(following) or underline.fullmatch(line) or _NO_TITLE.match(line):
        return False
    return rule == ".md" or len(following.rstrip()) >= len(line.rstrip())
