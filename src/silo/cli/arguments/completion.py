"""`silo completion bash|zsh|fish`: a script made of the parser, which knows all commands, options and choices.

The script answers by itself: no Python starts when somebody presses the tabulator. It is as old as the silo it came
from, and is written anew after an upgrade.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from silo.cli.arguments.parser import described_commands, find_command

_PATHS = frozenset({"FILE", "DIR", "PATH", "MODEL", "SOURCE", "BACKUP", "RECIPE.toml", "NAME|DIR|FILE"})
"""What stands in the help for a value that is a path."""


@dataclass(frozen=True, slots=True)
class _Value:
    """What may be typed at a place: one of some words, a path, or anything."""

    label: str
    words: tuple[str, ...]
    is_path: bool

    @classmethod
    def of(cls, action: argparse.Action) -> _Value:
        label = str(action.metavar or action.dest)
        return cls(label, tuple(map(str, action.choices or ())), label in _PATHS)


@dataclass(frozen=True, slots=True)
class _Option:
    """An option: its name without the dashes, what it is for, and its value if it takes one."""

    name: str
    help: str
    value: _Value | None
    may_repeat: bool


@dataclass(frozen=True, slots=True)
class _Command:
    """A command, or the beginning of one: the words that may come next, its options, its other arguments."""

    path: tuple[str, ...]
    words: Mapping[str, str]
    options: tuple[_Option, ...]
    places: tuple[_Value, ...]

    @property
    def name(self) -> str:
        return " ".join(self.path)


def _commands(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[_Command]:
    words = described_commands(parser)
    actions = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    options = [_option(action, name) for action in actions for name in action.option_strings if name[:2] == "--"]
    places = [_Value.of(action) for action in actions if not action.option_strings] if not words else []
    yield _Command(path, words, tuple(options), tuple(places))
    for word in words:
        yield from _commands(find_command(parser, word), (*path, word))


def _option(action: argparse.Action, name: str) -> _Option:
    text = (action.help or "").replace("%%", "%")
    value = None if action.nargs == 0 else _Value.of(action)
    return _Option(name[2:], text, value, isinstance(action.default, list))


def bash_script(parser: argparse.ArgumentParser) -> str:
    """For bash 3.2 and later. Where nothing is offered bash offers files."""
    commands = list(_commands(parser))
    known = "|".join(f'"{command.name}"' for command in commands if command.path)
    words, options, values = [], [], []
    for command in commands:
        choices = [*command.words, *(word for place in command.places for word in place.words)]
        words.append(f'        "{command.name}") words="{" ".join(choices)}" ;;')
        options.append(f'        "{command.name}") words="{" ".join("--" + item.name for item in command.options)}" ;;')
        values += [
            f'        "{command.name} --{item.name}") words="{" ".join(item.value.words)}" ;;'
            for item in command.options
            if item.value and item.value.words
        ]
        free = [item.name for item in command.options if item.value and not item.value.words]
        if free:
            names = "|".join(f'"{command.name} --{name}"' for name in free)
            values.append(f"        {names}) return ;;")
    return _BASH.format(known=known, words="\n".join(words), options="\n".join(options), values="\n".join(values))


_BASH = """# bash completion for silo, printed by `silo completion bash`
_silo() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" command="" words="" at longer
    COMPREPLY=()
    if [[ $current == "=" ]]; then
        current=""
    elif [[ $previous == "=" ]]; then
        previous="${{COMP_WORDS[COMP_CWORD-2]}}"
    fi
    for ((at = 1; at < COMP_CWORD; at++)); do
        longer="${{command:+$command }}${{COMP_WORDS[at]}}"
        case "$longer" in
        {known}) command="$longer" ;;
        *) break ;;
        esac
    done
    if [[ $current == -* ]]; then
        case "$command" in
{options}
        esac
    elif [[ $previous == --* ]]; then
        case "$command $previous" in
{values}
        esac
    fi
    if [[ -z $words && $current != -* ]]; then
        case "$command" in
{words}
        esac
    fi
    if [[ -n $words ]]; then
        COMPREPLY=($(compgen -W "$words" -- "$current"))
    fi
}}
complete -o default -F _silo silo
"""


def zsh_script(parser: argparse.ArgumentParser) -> str:
    """For zsh 5; a file named `_silo` in a folder of `$fpath`, or text to be evaluated after `compinit`."""
    functions = "\n".join(_zsh_function(command) for command in _commands(parser))
    return f"""#compdef silo
# zsh completion for silo, printed by `silo completion zsh`
{functions}
if [[ $funcstack[1] == _silo ]]; then
    _silo "$@"
else
    compdef _silo silo
fi
"""


def _zsh_function(command: _Command) -> str:
    name = "_".join(("_silo", *command.path))
    arguments = [_zsh_option(item) for item in command.options]
    if not command.words:
        arguments += [f"'{at}:{_zsh_value(place)}'" for at, place in enumerate(command.places, start=1)]
        arguments.append("'*: :_files'")
        lines = " \\\n        ".join(arguments)
        return f"{name}() {{\n    _arguments -s \\\n        {lines}\n}}"
    offered = " ".join(f"'{word}:{_zsh_text(text)}'" for word, text in command.words.items())
    cases = "\n".join(f"            {word}) {name}_{word} ;;" for word in command.words)
    lines = " \\\n        ".join([*arguments, "'1: :->word'", "'*:: :->rest'"])
    return f"""{name}() {{
    local curcontext="$curcontext" state line
    local -a words_known
    words_known=({offered})
    _arguments -C \\
        {lines}
    case $state in
    word) _describe command words_known ;;
    rest)
        case $line[1] in
{cases}
        esac
        ;;
    esac
}}"""


def _zsh_option(option: _Option) -> str:
    repeat = "*" if option.may_repeat else ""
    value = f":{_zsh_value(option.value)}" if option.value else ""
    return f"'{repeat}--{option.name}[{_zsh_text(option.help)}]{value}'"


def _zsh_value(value: _Value) -> str:
    action = f"({' '.join(value.words)})" if value.words else "_files" if value.is_path else " "
    return f"{_zsh_text(value.label)}:{action}"


def _zsh_text(text: str) -> str:
    for mark in "\\:[]":
        text = text.replace(mark, f"\\{mark}")
    return text.replace("'", "'\\''")


def fish_script(parser: argparse.ArgumentParser) -> str:
    """For fish 3."""
    lines = [_FISH]
    for command in _commands(parser):
        here = f"__silo_in {command.name}".strip()
        for word, text in command.words.items():
            lines.append(f"complete -c silo -n '__silo_at {command.name}' -a {word} -d {_fish_text(text)}")
        for option in command.options if not command.words else ():
            lines.append(
                f"complete -c silo -n '{here}' -l {option.name} {_fish_value(option)}-d {_fish_text(option.help)}"
            )
        for place in command.places:
            offered = f"-a {_fish_text(' '.join(place.words))}" if place.words else "-F"
            lines.append(f"complete -c silo -n '{here}' {offered}")
    return "\n".join(lines) + "\n"


def _fish_value(option: _Option) -> str:
    if option.value is None:
        return ""
    if option.value.words:
        return f"-x -a {_fish_text(' '.join(option.value.words))} "
    return "-r -F " if option.value.is_path else "-x "


def _fish_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_FISH = """# fish completion for silo, printed by `silo completion fish`
function __silo_at
    set -l words (commandline -opc)
    test "$words[2..]" = "$argv"
end
function __silo_in
    set -l words (commandline -opc)
    string match -q -- "$argv *" "$words[2..] "
end
complete -c silo -f"""

_SCRIPTS: Mapping[str, Callable[[argparse.ArgumentParser], str]] = {
    "bash": bash_script,
    "zsh": zsh_script,
    "fish": fish_script,
}


def add_command(nouns: Any, common: argparse.ArgumentParser, whole: argparse.ArgumentParser) -> None:
    """Add `silo completion`, for the commands of the whole parser."""
    parser = nouns.add_parser("completion", parents=[common], help="a script that completes commands in a shell")
    parser.add_argument("shell", metavar="SHELL", choices=tuple(_SCRIPTS), help="bash, zsh or fish")
    parser.set_defaults(run=lambda arguments: _print(_SCRIPTS[arguments.shell](whole)))


def _print(script: str) -> int:
    print(script, end="")
    return 0
