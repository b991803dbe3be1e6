"""The parser of the command line: complaints that name what was meant, help that shows defaults and an example."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from silo.cli.arguments.examples import EXAMPLES
from silo.errors import SiloError, did_you_mean, nearest_names

COMMON = ("--json", "--quiet", "--debug")
"""Options that every command has; they are written after it."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints look like every other error, and point to the help of the right command."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"formatter_class": _Formatter, **options})
        self._given: list[str] = []

    def error(self, message: str) -> NoReturn:
        """A misspelt option is what is wrong, even where it leaves another one missing."""
        if misspelt := [word for word in self._given if word.startswith("--") and not self._knows(word)]:
            self._refuse(misspelt)
        raise SiloError("usage", message, self._see_help())

    def _knows(self, word: str) -> bool:
        name = word.partition("=")[0]
        return name == "--" or any(known.startswith(name) for known in option_names(self))

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse does, but the command that does not know an argument says so, and not the one above it."""
        self._given = list(args or ())
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self._refuse(unknown)
        return parsed, unknown

    def _refuse(self, unknown: list[str]) -> NoReturn:
        name = next((word.partition("=")[0] for word in unknown if word.startswith("-")), "")
        if not name:
            raise SiloError("usage", f"nothing is expected at '{unknown[0]}'", self._see_help())
        if name in COMMON and self._verbs():
            raise SiloError("usage", f"{name} belongs behind the command", f"write `{self.prog} ... {name}`")
        raise SiloError("usage", f"there is no option {name}", self._see_help(did_you_mean(name, option_names(self))))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is none of the choices, and offer those that are near."""
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        if isinstance(action, argparse._SubParsersAction):
            raise SiloError("usage", f"there is no command '{self.prog} {value}'", self._see_help(self._near(value)))
        name = "/".join(action.option_strings) or action.metavar or action.dest
        message = f"{name} takes {', '.join(choices)}, not '{value}'"
        raise SiloError("usage", message, self._see_help(did_you_mean(str(value), choices)))

    def _near(self, word: str) -> str:
        """Commands of a noun that have this word as their verb, or those of another spelling."""
        near = [f"silo {' '.join(path)}" for path, _ in leaves(self) if len(path) > 1 and path[-1] == word]
        near = near or [f"{self.prog} {name}" for name in nearest_names(word, self._verbs(), most=2)]
        return f"did you mean `{'` or `'.join(near)}`?" if near else ""

    def _verbs(self) -> list[str]:
        return [name for action in _subcommands(self) for name in action.choices]

    def _see_help(self, before: str = "") -> str:
        return f"{before} run `{self.prog} --help`".strip()


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help with the defaults shown."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        takes_value = action.nargs != 0 and action.option_strings
        if takes_value and action.default not in (None, "", [], argparse.SUPPRESS) and "%(default)" not in text:
            text += " (default: %(default)s)"
        return text


def leaves(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Parser]]:
    """Every command that does something, by its words, with its parser."""
    for action in _subcommands(parser):
        for name, inner in action.choices.items():
            if _subcommands(inner):
                yield from leaves(inner, (*path, name))
            else:
                yield (*path, name), inner


def _subcommands(parser: argparse.ArgumentParser) -> Sequence[Any]:
    return [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]


def described_commands(parser: argparse.ArgumentParser) -> dict[str, str]:
    """The words that may come next, each with what it is for."""
    return {choice.dest: choice.help or "" for action in _subcommands(parser) for choice in action._choices_actions}


def find_command(parser: argparse.ArgumentParser, word: str) -> Parser:
    """The parser of the command that a word begins."""
    found: Parser = _subcommands(parser)[0].choices[word]
    return found


def option_names(parser: argparse.ArgumentParser) -> list[str]:
    """The long names of a command's options."""
    return [name for action in parser._actions for name in action.option_strings if name.startswith("--")]


def add_examples(parser: argparse.ArgumentParser) -> None:
    """End the help of every command with an example of it."""
    for path, leaf in leaves(parser):
        if example := EXAMPLES.get(" ".join(path)):
            leaf.epilog = f"example:\n  {example}"
