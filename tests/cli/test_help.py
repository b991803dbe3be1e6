"""Help shows an example and the defaults of every command; whatever is misspelt leads to what was meant."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
from pathlib import Path

import pytest

from silo.cli import show
from silo.cli.arguments.examples import EXAMPLES
from silo.cli.arguments.parser import leaves, option_names
from silo.cli.main import build_parser
from silo.errors import CODES, SiloError
from silo.inference.settings import VARIANTS, Settings

PARSER = build_parser()
LEAVES = {" ".join(path): leaf for path, leaf in leaves(PARSER)}
SOURCE = Path(__file__).parents[2] / "src" / "silo"


def _refused(command: str) -> SiloError:
    with pytest.raises(SiloError) as caught:
        build_parser().parse_args(shlex.split(command))
    return caught.value


def test_every_command_has_an_example_that_it_takes() -> None:
    assert EXAMPLES.keys() == LEAVES.keys()
    for name, example in EXAMPLES.items():
        program, *words = shlex.split(example.partition(" >")[0])
        assert program == "silo" and " ".join(words).startswith(name)
        PARSER.parse_args(words)
        assert LEAVES[name].format_help().rstrip().endswith(f"example:\n  {example}")


@pytest.mark.parametrize("name", LEAVES)
def test_help_explains_every_argument_and_shows_defaults(name: str) -> None:
    shown = " ".join(LEAVES[name].format_help().split())
    for action in LEAVES[name]._actions:
        label = "/".join(action.option_strings) or action.dest
        assert action.help, f"silo {name}: {label} is not explained"
        if action.option_strings and action.nargs != 0 and action.default not in (None, "", [], argparse.SUPPRESS):
            assert f"(default: {action.default})" in shown, f"silo {name}: {label}"


def test_defaults_that_come_from_settings_are_shown_as_they_are() -> None:
    shown, settings = " ".join(LEAVES["generate"].format_help().split()), Settings()
    assert show.RIC_VARIANTS == VARIANTS
    assert f"neighbours; {settings.k} where" in shown
    assert not settings.tau
    assert "distances; by the codec" in shown
    assert f"search reads; {settings.probes} " in shown
    assert settings.knn.nodes
    assert "weight of the neighbours; a gate without it" in shown
    assert f"stand before the text; {settings.ric.variant} " in shown


@pytest.mark.parametrize(
    ("command", "message", "hint"),
    [
        ("stoer list x", "there is no command 'silo stoer'", "did you mean `silo store`"),
        ("store lits x", "there is no command 'silo store lits'", "did you mean `silo store list`"),
        ("erase x", "there is no command 'silo erase'", "did you mean `silo store erase`? run `silo --help`"),
        ("store add x --jsonll y", "no option --jsonll", "did you mean --jsonl or --json? run `silo store add --help`"),
        ("store add --jsonll", "no option --jsonll", "did you mean --jsonl or --json? run `silo store add --help`"),
        ("generate x --modl m", "no option --modl", "did you mean --model"),
        ("generate x --model m --Policy=y", "no option --Policy", "did you mean --policy?"),
        ("store list x --zzz", "no option --zzz", "run `silo store list --help`"),
        ("store list x y", "nothing is expected at 'y'", "run `silo store list --help`"),
        ("--json store list x", "--json belongs behind the command", "write `silo ... --json`"),
        ("generate x --model m --ric basci", "--ric takes basic, ensemble", "did you mean basic?"),
        ("lm train --corpus c --preset dmo", "--preset takes demo", "did you mean demo"),
        ("lm codec m --corpus c --rotation pcaa", "--rotation takes", "did you mean pca?"),
        ("experiment scalling", "NAME takes report", "did you mean scaling"),
        ("generate x", "required: --model", "run `silo generate --help`"),
        ("generate x --model m --k many", "invalid int value", "run `silo generate --help`"),
    ],
)
def test_a_misspelt_word_leads_to_the_right_one(command: str, message: str, hint: str) -> None:
    error = _refused(command)
    assert message in error.message
    assert hint in error.hint


def test_an_option_may_still_be_shortened_and_a_value_may_look_like_one() -> None:
    parsed = build_parser().parse_args(["generate", "x", "--model", "m", "--temp", "1", "--stop=--end"])
    assert (parsed.temperature, parsed.stop) == (1.0, ["--end"])


def _hints() -> list[str]:
    """Every text in the source that may be shown with an error: those that name options or commands."""
    texts = [kind.hint for kind in CODES.values()]
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value:
                texts.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                texts.append("".join(str(part.value) for part in node.values if isinstance(part, ast.Constant)))
    return [text for text in texts if re.search(r"(?<![\w-])--[a-z]|`silo ", text)]


def test_options_and_commands_named_in_messages_exist() -> None:
    everywhere = {name for leaf in LEAVES.values() for name in option_names(leaf)} | {"--version"}
    hints = _hints()
    assert len(hints) > 100
    for text in hints:
        own = re.sub(r"`ray [^`]*`", "", text)  # what is said of another program's options is not checked
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", own)) <= everywhere, text
        for words, options in re.findall(r"`silo ((?:[a-z]+ ?)+)([^`]*)`", text):
            names = [name for name in LEAVES if words.strip().startswith(name)]
            nouns = {name.split()[0] for name in LEAVES}
            assert names or words.strip() in nouns or not words.strip(), text
            for option in re.findall(r"--[a-z][a-z-]*", options) if names else ():
                assert option in option_names(LEAVES[names[0]]), text
