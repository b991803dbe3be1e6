"""Defaults that need not be typed: `silo.toml` of the working directory and of the home, and `SILO_*` variables.

A flag counts more than a variable, a variable more than `./silo.toml`, that more than `silo.toml` of the home. A policy
and a guard are limits and no mere defaults: whoever states one narrows what the others allow, and nobody widens it.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from silo.cli.arguments.parser import leaves
from silo.errors import SiloError
from silo.remote.place import placed

FILE = "silo.toml"
HOME = "silo-home"
_PREFIX = "SILO_"
_LIMITS = ("policy", "guard")
_PATHS = ("home", "model", "store")


@dataclass(frozen=True, slots=True)
class Config:
    """What a `silo.toml` may state. Paths are relative to the file, and a home is not stated in a home."""

    home: str | None = None
    model: str | None = None
    store: tuple[str, ...] | None = None
    settings: str | None = None
    method: str | None = None
    policy: str | None = None
    guard: int | None = None
    device: str | None = None
    dtype: str | None = None
    threads: int | None = None
    quiet: bool | None = None

    def stated(self) -> dict[str, Any]:
        """The keys that have a value."""
        return {item.name: value for item in fields(self) if (value := getattr(self, item.name)) is not None}


KEYS = tuple(item.name for item in fields(Config))
_NUMBERS, _SWITCHES = ("guard", "threads"), ("quiet",)


@dataclass(frozen=True, slots=True)
class Statement:
    """A value and where it comes from."""

    key: str
    value: Any
    origin: str


def statements(home: str | None = None) -> list[Statement]:
    """All that is stated, what counts most first; `home` is what a flag says."""
    found = [*_from_environment(), *_from_file(Path.cwd() / FILE, f"./{FILE}")]
    stated = home or next((item.value for item in found if item.key == "home"), HOME)
    place = Path(stated).expanduser()
    if place.absolute() != Path.cwd():
        found += _from_file(place / FILE, str(place / FILE), in_home=True)
    return found


def _from_environment() -> Iterator[Statement]:
    for name in sorted(os.environ):
        key = name.removeprefix(_PREFIX).lower()
        if not name.startswith(_PREFIX) or not os.environ[name]:
            continue
        if key in KEYS:
            yield Statement(key, _parse_variable(name, key, os.environ[name]), f"${name}")
        elif near := _misspelt(key):
            raise SiloError("usage", f"${name} is no variable of silo", f"did you mean {_PREFIX}{near.upper()}?")


def _misspelt(key: str) -> str:
    """The key that was meant by one that is almost it; other programs have variables that begin like ours."""
    import difflib

    return next(iter(difflib.get_close_matches(key, KEYS, n=1, cutoff=0.8)), "")


def _parse_variable(name: str, key: str, text: str) -> Any:
    if key == "store":
        return tuple(part for part in re.split(f"{os.pathsep}(?!//)", text) if part)  # a URL stays in one piece
    if key in _SWITCHES and text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if key in _NUMBERS and text.isdecimal():
        return int(text)
    if key in (*_SWITCHES, *_NUMBERS):
        wanted = "true or false" if key in _SWITCHES else "a whole number"
        raise SiloError("usage", f"${name} must be {wanted}, not {text!r}")
    return text


_WORDS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def _from_file(path: Path, shown: str, *, in_home: bool = False) -> list[Statement]:
    if not path.is_file():
        return []
    from silo.recipe import parse_recipe, read_toml

    content = read_toml(path)
    if isinstance(content.get("store"), str):
        content["store"] = [content["store"]]
    config = parse_recipe(content, Config, where=shown)
    if in_home and config.home:
        raise SiloError("recipe-key", f"{shown}: a home cannot state where the home is")
    return [Statement(key, _beside(path, key, value), shown) for key, value in config.stated().items()]


def _beside(file: Path, key: str, value: Any) -> Any:
    """A path of a file as it is seen from here; the folder of `./silo.toml` needs no words."""
    if key not in _PATHS or file.parent == Path.cwd():
        return value
    place: Callable[[str], str] = lambda name: str(placed(Path(name).expanduser(), file.parent))  # noqa: E731
    return tuple(map(place, value)) if key == "store" else place(value)


def resolve(key: str, stated: list[Statement], flag: Any = None) -> tuple[Any, str]:
    """The value that counts, and where it comes from; (None, "") if nobody states one."""
    said = [item for item in stated if item.key == key]
    if key in _LIMITS:
        given = [Statement(key, flag, f"--{key}"), *said] if flag is not None else said
        return _narrowest(key, [item for item in given if item.value != ""])
    if flag is not None:
        return flag, f"--{key}"
    return (said[0].value, said[0].origin) if said else (None, "")


def _narrowest(key: str, said: list[Statement]) -> tuple[Any, str]:
    """What all statements allow together."""
    if not said:
        return None, ""
    if key == "guard":
        least = min(said, key=lambda item: item.value)
        if least.value < 1:
            raise SiloError("usage", f"{least.origin}: the guard lets at least one token be repeated")
        return least.value, least.origin
    for item in said:
        _check_policy(item)
    whole = said[0].value if len(said) == 1 else " and ".join(f"({item.value})" for item in said)
    return whole, ", ".join(item.origin for item in said)


def _check_policy(item: Statement) -> None:
    from silo.store.policy import Policy

    try:
        Policy.parse(item.value)
    except SiloError as error:
        raise SiloError(error.code, f"{item.origin}: {error.message}") from None


@dataclass(frozen=True, slots=True)
class _Managed:
    """An option whose value may be stated elsewhere."""

    default: Any
    required: bool


class Defaults:
    """Fills in what was not typed. Made before a command is parsed, used after."""

    def __init__(self, parser: argparse.ArgumentParser, *, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._managed: dict[str, dict[str, _Managed]] = {}
        known: dict[argparse.Action, _Managed] = {}  # commands share some of them
        for path, leaf in leaves(parser):
            command = " ".join(path)
            leaf.set_defaults(command=command)
            asked = any(action.dest == "model" and action.required for action in leaf._actions)
            for action in leaf._actions:
                if action in known or not _is_managed(action, asked=asked):
                    continue
                known[action] = _Managed(action.default, action.required)
                action.default, action.required = argparse.SUPPRESS, False
            self._managed[command] = {action.dest: known[action] for action in leaf._actions if action in known}

    def fill_in(self, parsed: argparse.Namespace) -> argparse.Namespace:
        """The arguments of a command, with what is stated elsewhere (`stated` names it) and with defaults."""
        managed: Mapping[str, _Managed] = self._managed[parsed.command]
        parsed.stated = set()
        stated = statements(getattr(parsed, "home", None)) if managed else []
        for key, option in managed.items():
            flag = getattr(parsed, key, None)
            value, origin = resolve(key, stated, flag)
            if key == "guard" and flag is None and "store" in managed and not parsed.store:
                value = None  # there is nothing to guard
            if key == "guard" and flag is not None and value != flag:
                self._warn(f"warning: the guard is {value}, as {origin} says, and not {flag}")
            if value is None and option.required:
                message = f"the following arguments are required: --{key}"
                raise SiloError("usage", message, f"run `silo {parsed.command} --help`, or state it in {FILE}")
            if value is not None and flag is None:
                parsed.stated.add(key)
            setattr(parsed, key, option.default if value is None else _as_given(key, value))
        return parsed


def _as_given(key: str, value: Any) -> Any:
    return list(value) if key == "store" else value


def _is_managed(action: argparse.Action, *, asked: bool) -> bool:
    """True for an option that the key of its name gives a default.

    A model and stores are those that a question is put to, where nothing else names them (`asked`): not where a store's
    model lies, a new store goes, or one more store. A home is not the folder of the demo.
    """
    if action.dest not in KEYS or not action.option_strings:
        return False
    repeats = isinstance(action, argparse._AppendAction)
    fits = {
        "model": action.required,
        "store": repeats and asked,
        "method": action.metavar == "M" and not repeats,
        "home": action.default is None,
    }
    return fits.get(action.dest, True)
