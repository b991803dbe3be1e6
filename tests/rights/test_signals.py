"""Preference signals beside the text: they narrow, and what cannot be read denies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from silo.errors import SiloError
from silo.records import Duty, Right
from silo.rights import assess, load_signals, resolve
from silo.rights.signals.rules import matches

TRAIN, STORE, INDEX = Right.train, Right.store, Right.index
MIT = assess("MIT", where="metadata")


def denied(folder: Path, path: str = "/a/b.html") -> set[Right]:
    return {right for item in load_signals(folder).evidence_for(path) for right in item.denies}


def robots(folder: Path, text: str, path: str = "/a/b.html") -> set[Right]:
    (folder / "robots.txt").write_text(text, encoding="utf-8")
    return denied(folder, path)


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SiloError) as error:
        load_signals(tmp_path / "nowhere")
    assert error.value.code == "input-missing"


def test_no_signals_deny_nothing_and_grant_nothing(tmp_path: Path) -> None:
    assert load_signals(tmp_path).evidence_for("/a") == ()


ROBOTS: list[tuple[str, set[Right]]] = [
    ("", set()),
    ("# nothing\n", set()),
    ("User-agent: *\nAllow: /\n", set()),
    ("User-agent: *\nDisallow:\n", set()),
    ("User-agent: *\nDisallow: /\n", {INDEX}),
    ("User-agent: *\nDisallow: /other\n", set()),
    ("User-agent: GPTBot\nDisallow: /\n", {TRAIN}),
    ("user-agent: gptbot\nuser-agent: CCBot\ndisallow: /a/\n", {TRAIN}),
    ("User-agent: GPTBot\nDisallow: /\nAllow: /a/\n", set()),
    ("User-agent: GPTBot\nAllow: /a/\nDisallow: /*.html$\n", {TRAIN}),
    ("User-agent: PerplexityBot\nDisallow: /\n", {STORE}),
    ("User-agent: Friendlybot\nDisallow: /\nContent-Signal: ai-train=no\n", set()),
    ("User-agent: *\nContent-Usage: train-ai=n, search=y\n", {TRAIN}),
    ("User-agent: *\nContent-Usage: train-ai=n\nContent-Usage: /a/ train-ai=y\n", set()),
    ("User-agent: *\nContent-Usage: /a/ train-ai=n\nContent-Usage: /other train-ai=n\n", {TRAIN}),
    ("User-agent: *\nContent-Usage: train-ai=n\nContent-Usage: train-ai=y\n", {TRAIN}),
    ("User-agent: *\nContent-Usage: train-ai=maybe\n", {TRAIN}),
    ("User-agent: *\nContent-Usage: train-ai\n", {TRAIN}),
    ("User-agent: *\nContent-Usage: dance=n\n", set()),
    ("Content-Usage: bots=n\n", {TRAIN, STORE, INDEX}),
    ("User-Agent: *\nContent-Signal: search=yes, ai-input=no, ai-train=no\nAllow: /\n", {TRAIN, STORE}),
    ("User-Agent: *\nContent-Signal: search=yes,ai-train=perhaps\n", {TRAIN}),
    ("License: https://example.org/license.xml\n", {TRAIN, STORE}),
    ("<!doctype html>\n<h1>Not found</h1>\n", {TRAIN, STORE, INDEX}),
]


@pytest.mark.parametrize(("text", "rights"), ROBOTS)
def test_robots_txt(tmp_path: Path, text: str, rights: set[Right]) -> None:
    assert robots(tmp_path, text) == rights


def test_evidence_names_file_and_line(tmp_path: Path) -> None:
    robots(tmp_path, "\ufeffUser-agent: *\nContent-Signal: ai-train=no\n")
    (evidence,) = load_signals(tmp_path).evidence_for("/a")
    assert (evidence.where, evidence.method, evidence.tier) == ("robots.txt:2", "content-signal", None)
    assert "ai-train=no" in evidence.asserted


TDMREP: list[tuple[object, set[Right]]] = [
    ([{"location": "/a/", "tdm-reservation": 1}], {TRAIN, STORE}),
    ([{"location": "/a/", "tdm-reservation": 1, "tdm-policy": "https://x"}], {TRAIN, STORE}),
    ([{"location": "/other/", "tdm-reservation": 1}], set()),
    ([{"location": "/", "tdm-reservation": 1}, {"location": "/a/*.html", "tdm-reservation": 0}], set()),
    ([{"location": "/", "tdm-reservation": 0}, {"location": "/a/", "tdm-reservation": 1}], {TRAIN, STORE}),
    ([{"location": "/", "tdm-reservation": "no idea"}], {TRAIN, STORE}),
    ([{"location": "/", "tdm-reservation": False}], {TRAIN, STORE}),
    ([{"tdm-reservation": 1}], {TRAIN, STORE}),
    (["/a/"], {TRAIN, STORE}),
    ([], set()),
    ({"location": "/"}, {TRAIN, STORE, INDEX}),
]


@pytest.mark.parametrize(("content", "rights"), TDMREP)
@pytest.mark.parametrize("name", ["tdmrep.json", ".well-known/tdmrep.json"])
def test_tdmrep(tmp_path: Path, name: str, content: object, rights: set[Right]) -> None:
    (tmp_path / ".well-known").mkdir()
    (tmp_path / name).write_text(json.dumps(content, indent=1), encoding="utf-8")
    assert denied(tmp_path) == rights


def test_tdmrep_evidence_names_the_line_of_its_entry(tmp_path: Path) -> None:
    entries = '[\n {"location": "/x", "tdm-reservation": 1},\n {"location": "/a", "tdm-reservation": 1}\n]'
    (tmp_path / "tdmrep.json").write_text(entries, encoding="utf-8")
    assert [item.where for item in load_signals(tmp_path).evidence_for("/a")] == ["tdmrep.json:3"]


def rsl(*inside: str, url: str = "/", namespace: str = ' xmlns="https://rslstandard.org/rsl"') -> str:
    licences = "".join(f"<license>{text}</license>" for text in inside)
    return f'<?xml version="1.0"?>\n<rsl{namespace}>\n <content url="{url}">{licences}</content>\n</rsl>'


PERMIT, PROHIBIT = '<permits type="usage">{}</permits>', '<prohibits type="usage">{}</prohibits>'
RSL: list[tuple[str, set[Right]]] = [
    (rsl(PERMIT.format("all")), set()),
    (rsl(PERMIT.format("all"), namespace=""), set()),
    (rsl(PERMIT.format("search")), {TRAIN, STORE}),
    (rsl(PERMIT.format("ai-train, search")), {STORE}),
    (rsl(PROHIBIT.format("ai-train")), {TRAIN}),
    (rsl(PERMIT.format("all") + PROHIBIT.format("ai-train ai-input")), {TRAIN, STORE}),
    (rsl(PERMIT.format("all") + '<payment type="free"/>'), set()),
    (rsl(PERMIT.format("all") + '<payment type="purchase"><amount>5</amount></payment>'), {TRAIN, STORE, INDEX}),
    (rsl(PERMIT.format("ai-train") + '<payment type="training"/>', PERMIT.format("search,ai-input")), {TRAIN}),
    (rsl(PERMIT.format("all") + '<permits type="user">education</permits>'), {TRAIN, STORE, INDEX}),
    (rsl(), {TRAIN, STORE, INDEX}),
    (rsl(PROHIBIT.format("all"), url="/other/*"), set()),
    (rsl(PROHIBIT.format("all"), url="https://example.org/a/"), {TRAIN, STORE, INDEX}),
    ("<rss></rss>", {TRAIN, STORE, INDEX}),
    ("<rsl>", {TRAIN, STORE, INDEX}),
    ('<!DOCTYPE rsl [<!ENTITY a "b">]>' + rsl(PERMIT.format("all")), {TRAIN, STORE, INDEX}),
    ("<rsl>" + "<a>" * 5000, {TRAIN, STORE, INDEX}),
]


@pytest.mark.parametrize(("text", "rights"), RSL)
def test_rsl(tmp_path: Path, text: str, rights: set[Right]) -> None:
    (tmp_path / "rsl.xml").write_text(text, encoding="utf-8")
    assert denied(tmp_path) == rights


def test_payment_and_credit_of_rsl_are_duties(tmp_path: Path) -> None:
    text = rsl(
        PERMIT.format("all") + '<payment type="purchase"/>', PERMIT.format("search") + '<payment type="attribution"/>'
    )
    (tmp_path / "license.xml").write_text(text, encoding="utf-8")
    verdict = resolve([MIT, *load_signals(tmp_path).evidence_for("/")])
    assert verdict.duties == {Duty.payment, Duty.attribution, Duty.notice}
    assert not verdict.rights.train


def test_a_license_line_is_satisfied_by_the_terms_at_hand(tmp_path: Path) -> None:
    (tmp_path / "rsl.xml").write_text(rsl(PERMIT.format("all")), encoding="utf-8")
    assert robots(tmp_path, "License: https://example.org/rsl.xml\n") == set()


@pytest.mark.parametrize(
    ("use", "rights"),
    [("allowed", set()), ("notAllowed", {STORE}), ("constrained", {STORE}), ("sure", {STORE}), (None, {STORE})],
)
def test_cawg_assertions(tmp_path: Path, use: str | None, rights: set[Right]) -> None:
    entries = {"cawg.ai_inference": {"use": use}, "cawg.ai_training": {"use": "allowed"}}
    manifest = {"assertions": [{"label": "cawg.training-mining", "data": {"entries": entries}}]}
    (tmp_path / "cawg.json").write_text(json.dumps(manifest), encoding="utf-8")
    assert denied(tmp_path) == rights


@pytest.mark.parametrize("name", ["robots.txt", "tdmrep.json", "rsl.xml", "c2pa.json"])
@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"{" * 100_000, b'{"a":1,"a":2}', b"[" * 2_000_000, b"\0"])
def test_an_unreadable_file_denies_everything_below_it(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    found = load_signals(tmp_path).evidence_for("/a")
    assert [item.method for item in found] == ["signal-unreadable"]
    assert found[0].where == name
    assert denied(tmp_path) == {TRAIN, STORE, INDEX}


def test_a_broken_link_or_folder_is_unreadable_not_absent(tmp_path: Path) -> None:
    (tmp_path / "robots.txt").symlink_to(tmp_path / "gone")
    (tmp_path / "tdmrep.json").mkdir()
    assert [item.where for item in load_signals(tmp_path).evidence_for("/a")] == ["robots.txt", "tdmrep.json"]


def test_a_host_has_its_own_files(tmp_path: Path) -> None:
    for host, bot in (("example.org", "GPTBot"), ("example.com", "PerplexityBot")):
        (tmp_path / host).mkdir()
        (tmp_path / host / "robots.txt").write_text(f"User-agent: {bot}\nDisallow: /a\n", encoding="utf-8")
    assert denied(tmp_path, "https://example.org/a/b?c=1") == {TRAIN}
    assert denied(tmp_path, "http://EXAMPLE.com:8080/a") == {STORE}
    assert denied(tmp_path, "https://example.net/a") == set()
    assert denied(tmp_path, "/a") == set()
    assert load_signals(tmp_path).evidence_for("https://example.org/a")[0].where == "example.org/robots.txt:2"


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("/", "/x", True),
        ("/a", "/ab", True),
        ("/a/", "/a", False),
        ("/a$", "/a", True),
        ("/a$", "/ab", False),
        ("/*.php", "/x/y.php?z", True),
        ("/*.php$", "/x/y.php?z", False),
        ("*", "/x", True),
        ("/a*b*c$", "/a-b-b-c", True),
        ("/a*b*c$", "/a-c-b", False),
        ("/%7Ejoe", "/~joe", True),
        ("/a%2Fb", "/a/b", False),
        ("/" + "*a" * 3000, "/" + "a" * 2999, False),
    ],
)
def test_patterns_follow_rfc_9309(pattern: str, path: str, expected: bool) -> None:
    assert matches(pattern, path) is expected


lines = st.sampled_from([text.splitlines() for text, _ in ROBOTS if text]).flatmap(st.sampled_from)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
@given(st.lists(lines | st.text(max_size=30), max_size=8), st.text(max_size=20))
def test_signals_only_narrow(tmp_path: Path, content: list[str], path: str) -> None:
    (tmp_path / "robots.txt").write_text("\n".join(content), encoding="utf-8", errors="replace")
    signals = load_signals(tmp_path).evidence_for(path)
    free, bound = resolve([MIT]), resolve([MIT, *signals])
    assert bound.tier is free.tier
    assert free.rights.covers(bound.rights)
