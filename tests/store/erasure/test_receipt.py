"""A receipt can be checked by anybody offline, and no byte of it can be changed unnoticed."""

from __future__ import annotations

import argparse
import base64
import copy
import json
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from silo.cli import receipt as command
from silo.errors import SiloError
from silo.files import canonical_json, fingerprint, write_json
from silo.records import document_id
from silo.signing import load_or_make_key
from silo.store.erasure.log import AuditLog, Head
from silo.store.erasure.receipt import (
    EXCLUSIONS,
    Erasure,
    ModelListing,
    check_receipt,
    draft_receipt,
    log_facts,
    new_salts,
    parse_receipt,
    proves,
    sign_draft,
)

DOCUMENTS = tuple(document_id("test", f"work {number}") for number in range(3))
ACCEPTED = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
DONE = ACCEPTED + timedelta(seconds=4)

ERASURE = Erasure(
    config=fingerprint("config"),
    documents=DOCUMENTS,
    tokens=1200,
    passages=14,
    generation_before=7,
    generation_after=8,
    digest_before=fingerprint("before"),
    digest_after=fingerprint("after"),
    accepted=ACCEPTED,
    checks={"digest-recomputed": True, "residue-windows-scanned": 5000, "residue-hits": 0, "readers-drained": True},
    models=(ModelListing("small", fingerprint("small"), False), ModelListing("old", fingerprint("old"), True)),
)
KEY = Ed25519PrivateKey.generate()
PUBLIC = KEY.public_key().public_bytes_raw()
SALTS = new_salts(DOCUMENTS)
LOGGED_AT = Head(3, fingerprint("a line"))


def drafted(erasure: Erasure = ERASURE, *, key: Ed25519PrivateKey = KEY) -> dict[str, Any]:
    return draft_receipt(erasure, SALTS, key=key, done=DONE)


def made(erasure: Erasure = ERASURE, *, log: Head = LOGGED_AT, key: Ed25519PrivateKey = KEY) -> dict[str, Any]:
    return sign_draft(drafted(erasure, key=key), key=key, log=log)


def signed_again(content: dict[str, Any]) -> dict[str, Any]:
    """The content with a fresh signature by the same key."""
    rest = {name: value for name, value in content.items() if name != "signature"}
    return {**rest, "signature": base64.b64encode(KEY.sign(canonical_json(rest))).decode()}


def refused(content: dict[str, Any], **given: Any) -> str:
    with pytest.raises(SiloError) as caught:
        check_receipt(content, **given)
    assert caught.value.code == "receipt-invalid"
    return caught.value.message


@pytest.fixture
def logged(tmp_path: Path) -> tuple[dict[str, Any], Path]:
    """A receipt and the log that holds its erasure between others."""
    path = tmp_path / "log.jsonl"
    log = AuditLog.open(path)
    log.append("created", {"documents": 3})
    entry = log.append("erased", {**log_facts(drafted()), "more": 1})
    log.append("erased", {"documents": 9})
    return made(log=Head(entry.n, entry.hash)), path


def test_a_receipt_says_what_happened_and_what_is_not_covered() -> None:
    content = made()
    assert content["counts"] == {"documents": 3, "tokens": 1200, "passages": 14}
    assert content["generation"] == {"before": 7, "after": 8}
    assert content["digest"] == {"before": fingerprint("before"), "after": fingerprint("after")}
    assert (content["accepted"], content["done"]) == ("2026-03-01T12:00:00.123Z", "2026-03-01T12:00:04.123Z")
    assert content["exclusions"] == list(EXCLUSIONS)
    findings = check_receipt(content, key=PUBLIC)
    assert findings["valid"] and findings["key_checked"] and not findings["log_checked"]
    assert findings["failed_checks"] == []
    assert findings["models_that_list_it"] == ["old"]
    assert findings["documents"] == 3


def test_a_receipt_names_no_document_and_holds_no_salt() -> None:
    data = canonical_json(made()).decode() + canonical_json(log_facts(drafted())).decode()
    for secret in (*DOCUMENTS, *SALTS.values()):
        assert secret not in data
    order = replace(ERASURE, documents=DOCUMENTS[::-1])
    assert made(order) == made()


def test_only_the_owners_salt_shows_that_a_document_was_erased() -> None:
    content = made()
    for document in DOCUMENTS:
        assert proves(content, document, SALTS[document])
        assert not proves(content, document, new_salts([document])[document])
        assert not proves(content, document_id("test", "another"), SALTS[document])
    for malformed in ("", "zz", "00", SALTS[DOCUMENTS[0]][:-2]):
        assert not proves(content, DOCUMENTS[0], malformed)
    assert not proves(content, DOCUMENTS[0], SALTS[DOCUMENTS[1]])
    assert len(set(new_salts(DOCUMENTS).values()) | set(SALTS.values())) == 6


@pytest.mark.parametrize("flip", [1, 4, 0x20, 0x80])
def test_every_changed_byte_is_noticed(flip: int) -> None:
    data = canonical_json(made())
    for at in range(len(data)):
        with pytest.raises(SiloError) as caught:
            check_receipt(parse_receipt(data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]))
        assert caught.value.code == "receipt-invalid", f"byte {at}"


@given(st.data())
def test_every_changed_value_is_noticed(data: st.DataObject) -> None:
    content: dict[str, Any] = copy.deepcopy(made())
    place: Any = content
    key: Any = data.draw(st.sampled_from(sorted(content)))
    while isinstance(place[key], dict | list):
        place = place[key]
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
    other: st.SearchStrategy[Any] = (
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just([]) | st.just({})
    )
    place[key] = data.draw(other.filter(lambda value: type(value) is not type(place[key]) or value != place[key]))
    refused(content)


@pytest.mark.parametrize("name", sorted(made()))
def test_every_field_is_needed_and_none_may_be_added(name: str) -> None:
    content = made()
    del content[name]
    assert "missing" in refused(content)
    assert "not one of" in refused(signed_again({**made(), name + "x": 1}))


@pytest.mark.parametrize(
    "change",
    [
        {"format": "silo-receipt-3"},
        {"kind": "addition"},
        {"config": "ABC"},
        {"commitments": []},
        {"commitments": made()["commitments"][::-1]},
        {"commitments": made()["commitments"][:2]},
        {"counts": {"documents": 3, "tokens": 1}},
        {"counts": {"documents": 3, "tokens": -1, "passages": 0}},
        {"counts": {"documents": 3, "tokens": True, "passages": 0}},
        {"counts": {"documents": 3, "tokens": 1.0, "passages": 0}},
        {"generation": {"before": None, "after": 1}},
        {"log": {"n": 1, "hash": "x"}},
        {"done": "2026-03-01T11:59:59.000Z"},
        {"done": "2026-03-01T13:00:04.123+01:00"},
        {"done": "yesterday"},
        {"done": 5},
        {"checks": {"residue-hits": "none"}},
        {"models": [{"name": "a", "fingerprint": "b"}]},
        {"exclusions": "nothing"},
    ],
)
def test_malformed_content_is_refused_even_if_signed(change: dict[str, Any]) -> None:
    refused(signed_again({**made(), **change}))


def test_half_characters_and_signatures_in_another_spelling_are_refused() -> None:
    refused({**made(), "exclusions": ["\ud800"]})
    text = made()["signature"]
    last = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/".index(text[-3])
    spelled = text[:-3] + "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[last ^ 1] + "=="
    assert base64.b64decode(spelled) == base64.b64decode(text)
    assert "well formed" in refused({**made(), "signature": spelled})


def test_a_receipt_of_another_key_is_valid_in_itself_but_not_under_the_key_one_trusts() -> None:
    forged = made(key=Ed25519PrivateKey.generate())
    assert not check_receipt(forged)["key_checked"]
    assert "another key" in refused(forged, key=PUBLIC)
    assert "signature" in refused({**forged, "public_key": made()["public_key"]}, key=PUBLIC)


def test_only_ed25519_public_keys_are_taken() -> None:
    info = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    assert check_receipt(made(), key=KEY.public_key().public_bytes(*info))["key_checked"]
    for wrong in (b"", b"not a key", ec.generate_private_key(ec.SECP256R1()).public_key().public_bytes(*info)):
        assert "not an Ed25519" in refused(made(), key=wrong)


def test_failed_checks_are_named() -> None:
    checks = {"digest-recomputed": False, "residue-hits": 2, "residue-windows-scanned": 0, "readers-drained": True}
    findings = check_receipt(made(replace(ERASURE, checks=checks)))
    assert findings["failed_checks"] == ["digest-recomputed", "residue-hits"]


def test_times_are_utc_and_never_naive() -> None:
    elsewhere = ACCEPTED.astimezone(timezone(timedelta(hours=5)))
    assert made(replace(ERASURE, accepted=elsewhere)) == made()
    with pytest.raises(ValueError, match="time zone"):
        made(replace(ERASURE, accepted=ACCEPTED.replace(tzinfo=None)))


def test_nothing_malformed_is_signed() -> None:
    for wrong in (replace(ERASURE, documents=()), replace(ERASURE, config="x"), replace(ERASURE, tokens=-1)):
        with pytest.raises(SiloError):
            made(wrong)


def test_the_log_holds_the_erasure(logged: tuple[dict[str, Any], Path]) -> None:
    content, path = logged
    assert check_receipt(content, key=PUBLIC, log=path)["log_checked"]


def test_a_log_that_lost_or_changed_the_entry_is_noticed(logged: tuple[dict[str, Any], Path]) -> None:
    content, path = logged
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0])
    assert "does not hold entry 2" in refused(content, log=path)
    path.unlink()
    rewritten = AuditLog.open(path)
    rewritten.append("created", {"documents": 4})
    rewritten.append("erased", log_facts(drafted()))
    assert "does not hold entry 2" in refused(content, log=path)
    assert "does not hold entry 0" in refused(made(log=Head(0, rewritten.head().hash)), log=path)
    path.write_bytes(lines[0] + lines[2])
    with pytest.raises(SiloError) as caught:
        check_receipt(content, log=path)
    assert caught.value.code == "store-damaged"


def test_a_receipt_that_points_at_the_entry_of_something_else_is_refused(logged: tuple[dict[str, Any], Path]) -> None:
    _, path = logged
    for number in (0, 2):
        entry = AuditLog.open(path, read_only=True).entries[number]
        assert "differs" in refused(made(log=Head(entry.n, entry.hash)), log=path)
    entry = AuditLog.open(path, read_only=True).entries[1]
    for other in (replace(ERASURE, tokens=1), replace(ERASURE, documents=DOCUMENTS[:2])):
        assert "differs" in refused(made(other, log=Head(entry.n, entry.hash)), log=path)


def test_a_key_is_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "receipts.pem"
    key = load_or_make_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    again = load_or_make_key(path)
    assert again.private_bytes_raw() == key.private_bytes_raw()
    public = (tmp_path / "receipts.pem.pub").read_bytes()
    assert b"PRIVATE" not in public
    assert check_receipt(made(key=key), key=public)["key_checked"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["receipts.pem", "receipts.pem.pub"]


def test_a_crash_while_the_key_is_made_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    path = tmp_path / "key"
    (tmp_path / "key.partial").write_bytes(b"half a k")
    key = load_or_make_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    (tmp_path / "key.pub").unlink()
    assert load_or_make_key(path).private_bytes_raw() == key.private_bytes_raw()
    assert (tmp_path / "key.pub").exists()


def test_keys_that_are_open_damaged_or_swapped_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    load_or_make_key(path)
    path.chmod(0o644)
    with pytest.raises(SiloError, match="others may read"):
        load_or_make_key(path)
    path.chmod(0o600)
    load_or_make_key(tmp_path / "other")
    (tmp_path / "key.pub").write_bytes((tmp_path / "other.pub").read_bytes())
    with pytest.raises(SiloError, match="belongs to another key"):
        load_or_make_key(path)
    of_another_kind = path.read_bytes().replace(b"K2Vw", b"K2Vv")
    for damaged in (b"not a key", of_another_kind):
        path.write_bytes(damaged)
        with pytest.raises(SiloError, match="not an Ed25519 signing key"):
            load_or_make_key(path)


def verified(*arguments: str) -> int:
    """Run `silo receipt verify` as the command line does."""
    parser = argparse.ArgumentParser()
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true")
    common.add_argument("--quiet", action="store_true")
    command.add_commands(parser.add_subparsers(), common)
    parsed = parser.parse_args(["receipt", "verify", *arguments])
    status: int = parsed.run(parsed)
    return status


@pytest.fixture
def files(logged: tuple[dict[str, Any], Path], tmp_path: Path) -> dict[str, str]:
    content, log = logged
    write_json(tmp_path / "receipt.json", content)
    info = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    (tmp_path / "key.pub").write_bytes(KEY.public_key().public_bytes(*info))
    return {"receipt": str(tmp_path / "receipt.json"), "key": str(tmp_path / "key.pub"), "log": str(log)}


def test_verify_checks_everything_it_is_given(files: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    owned = ("--document", DOCUMENTS[1], "--salt", SALTS[DOCUMENTS[1]])
    arguments = (files["receipt"], "--key", files["key"], "--log", files["log"], *owned)
    assert verified(*arguments, "--json") == 0
    findings = json.loads(capsys.readouterr().out)
    assert findings["valid"] and findings["key_checked"] and findings["log_checked"] and findings["document_proven"]
    assert verified(*arguments) == 0
    shown = capsys.readouterr()
    assert "genuine" in shown.out and "residue-hits" in shown.out and "Backups" in shown.out
    assert shown.err == ""


def test_without_a_key_one_trusts_a_receipt_is_not_called_genuine(
    files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert verified(files["receipt"], "--log", files["log"]) == 3
    shown = capsys.readouterr()
    assert "self-consistent" in shown.out and "genuine" not in shown.out
    assert "[key-not-given]" in shown.err and "hint: " in shown.err
    assert verified(files["receipt"], "--json") == 3
    findings = json.loads(capsys.readouterr().out)
    assert not findings["valid"] and findings["verdict"] == "self-consistent"


def test_an_altered_receipt_signed_by_another_key_does_not_match_the_log(logged: tuple[dict[str, Any], Path]) -> None:
    content, path = logged
    entry, other = Head(**content["log"]), Ed25519PrivateKey.generate()
    assert "the key" in refused(made(log=entry, key=other), log=path)
    better = {**ERASURE.checks, "residue-hits": 1}
    for change in ({"checks": better}, {"models": ()}, {"exclusions": ("Nothing.",)}):
        altered = replace(ERASURE, **change)
        assert "what it says" in refused(made(altered, log=entry), log=path)
        assert "differs" in refused(made(altered, log=entry, key=other), log=path)
    later = sign_draft(draft_receipt(ERASURE, SALTS, key=KEY, done=DONE + timedelta(days=1)), key=KEY, log=entry)
    assert "what it says" in refused(later, log=path)
    assert "differs" in refused(signed_again({**content, "format": "silo-receipt-1"}), log=path)


def first_format(checks: dict[str, Any], tokens: int, path: Path) -> dict[str, Any]:
    """A receipt as silo made them at first, logged as it was then."""
    draft = drafted(replace(ERASURE, checks=checks, tokens=tokens))
    facts = {name: value for name, value in log_facts(draft).items() if name not in ("signer", "receipt")}
    log = AuditLog.open(path)
    log.append("erased", facts)
    entry = {"n": log.head().n, "hash": log.head().hash}
    return signed_again({**draft, "format": "silo-receipt-1", "log": entry})


def test_receipts_of_the_first_format_still_verify(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    made_first = {"digest-recomputed": True, "readers-drained": True, "residue-windows": 9, "residue-hits": 0}
    whole = first_format(made_first, 7, path)
    findings = check_receipt(whole, key=PUBLIC, log=path)
    assert findings["valid"] and findings["log_checked"] and not findings["not_checked"]
    after_a_crash = first_format({**made_first, "residue-windows": 0}, 0, path)
    findings = check_receipt(after_a_crash, key=PUBLIC, log=path)
    assert findings["not_checked"] == ["digest-recomputed", "readers-drained", "residue-hits"]
    assert check_receipt(whole, key=PUBLIC, log=path)["log_checked"]
    refused(signed_again({**whole, "checks": {**made_first, "residue-hits": "not checked"}}))
    entry = Head(**whole["log"])
    assert "differs" in refused(made(log=entry), log=path)


@pytest.mark.parametrize(
    ("checks", "failed", "unmade"),
    [
        ({"readers-drained": False}, ["readers-drained"], []),
        ({"residue-hits": 1}, ["residue-hits"], []),
        ({"residue-hits": "not checked"}, [], ["residue-hits"]),
        ({"digest-recomputed": False, "residue-hits": "not checked"}, ["digest-recomputed"], ["residue-hits"]),
    ],
)
def test_checks_that_failed_or_were_not_made_are_told_and_have_a_status(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    checks: dict[str, Any],
    failed: list[str],
    unmade: list[str],
) -> None:
    write_json(tmp_path / "receipt.json", made(replace(ERASURE, checks={**ERASURE.checks, **checks})))
    info = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    (tmp_path / "key.pub").write_bytes(KEY.public_key().public_bytes(*info))
    given = (str(tmp_path / "receipt.json"), "--key", str(tmp_path / "key.pub"))
    assert verified(*given, "--json") == 4
    told = capsys.readouterr()
    findings = json.loads(told.out)
    assert (findings["failed_checks"], findings["not_checked"]) == (failed, unmade)
    assert ("[check-failed]" in told.err, "[check-not-made]" in told.err) == (bool(failed), bool(unmade))
    assert verified(*given) == 4
    assert verified(given[0]) == 4


def test_a_receipt_without_a_check_does_not_pass_it() -> None:
    findings = check_receipt(made(replace(ERASURE, checks={"residue-hits": 0})))
    assert findings["not_checked"] == ["digest-recomputed", "readers-drained"]
    counted = check_receipt(made(replace(ERASURE, tokens="not checked")))
    assert counted["not_checked"] == ["tokens"]


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        (("{receipt}", "--document", DOCUMENTS[0]), "usage"),
        (("{receipt}", "--document", DOCUMENTS[0], "--salt", "00" * 32), "receipt-invalid"),
        (("{receipt}", "--key", "{log}"), "receipt-invalid"),
        (("{receipt}", "--key", "nowhere"), "input-missing"),
        (("{receipt}", "--log", "nowhere"), "input-missing"),
        (("{receipt}", "--log", "{receipt}"), "store-damaged"),
        (("nowhere",), "input-missing"),
        (("{log}",), "receipt-invalid"),
        (("{key}",), "receipt-invalid"),
        (("/",), "input-unreadable"),
    ],
)
def test_verify_says_what_is_wrong(files: dict[str, str], changed: tuple[str, ...], code: str) -> None:
    with pytest.raises(SiloError) as caught:
        verified(*(argument.format(**files) for argument in changed))
    assert caught.value.code == code


@pytest.mark.parametrize("text", ['{"a":1,"a":1}', '{"a":NaN}', "[]", "[" * 100_000, "1" * 5000, "\udcff"])
def test_json_that_is_not_plain_is_refused(text: str) -> None:
    with pytest.raises(SiloError) as caught:
        parse_receipt(text.encode("utf-8", "surrogateescape"))
    assert caught.value.code == "receipt-invalid"


def test_verifying_loads_neither_torch_nor_faiss(files: dict[str, str]) -> None:
    code = (
        "import sys; from pathlib import Path; import silo.cli.receipt; from silo.store.erasure.receipt import *\n"
        f"check_receipt(read_receipt(Path({files['receipt']!r})), log=Path({files['log']!r}))\n"
        "print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers", "faiss", "numba", "numpy", "rich"} & set(loaded)
