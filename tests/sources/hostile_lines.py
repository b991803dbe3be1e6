"""Hostile JSON lines: one bad line between two good ones."""

from __future__ import annotations

from tests.sources.hostile_case import GOOD, Case, between, file, record

DEEP_LIST = b"[" * 10_000 + b"]" * 10_000


def _nested(depth: int) -> bytes:
    return record(metadata={}).replace(b'"metadata": {}', b'"metadata": ' + b'{"a":' * depth + b"1" + b"}" * depth)


def _many_keys(count: int) -> bytes:
    return record(**{f"key{at}": at for at in range(count)})


LINES: list[Case] = [
    # one bad line between two good ones
    Case("duplicate-license", "jsonl", between(GOOD[:-1] + b', "license": "CC0-1.0"}'), ("json-duplicate-key",), 2),
    Case(
        "duplicate-nested", "jsonl", between(GOOD[:-1] + b', "metadata": {"a": 1, "a": 2}}'), ("json-duplicate-key",), 2
    ),
    Case("duplicate-escaped", "jsonl", between(GOOD[:-1] + b', "licens\\u0065": "CC0"}'), ("json-duplicate-key",), 2),
    Case("licence-and-license", "jsonl", between(record(licence="CC0-1.0")), ("json-duplicate-key",), 2),
    Case("nan", "jsonl", between(GOOD[:-1] + b', "metadata": {"x": NaN}}'), ("json-number",), 2),
    Case("infinity", "jsonl", between(GOOD[:-1] + b', "score": -Infinity}'), ("json-number",), 2),
    Case("float-overflow", "jsonl", between(GOOD[:-1] + b', "metadata": {"x": 1e999}}'), ("json-number",), 2),
    Case("int-of-5000-digits", "jsonl", between(GOOD[:-1] + b', "n": ' + b"9" * 5000 + b"}"), ("json-number",), 2),
    Case("lone-surrogate-text", "jsonl", between(record(text="x\ud800y")), ("surrogate-lone",), 2),
    Case("lone-surrogate-id", "jsonl", between(record(id="\udfff")), ("surrogate-lone",), 2),
    Case("lone-surrogate-upper", "jsonl", between(b'{"id": "a", "text": "\\uDBFF"}'), ("surrogate-lone",), 2),
    Case("lone-surrogate-key", "jsonl", between(record(metadata={"\ud9aa": 1})), ("surrogate-lone",), 2),
    Case("surrogate-pair", "jsonl", between(b'{"id": "a", "text": "\\ud83d\\ude00"}'), (), 3),
    Case("surrogate-as-utf8", "jsonl", between(b'{"id": "a", "text": "\xed\xa0\x80"}'), ("utf8-invalid",), 2),
    Case("deep-objects", "jsonl", between(_nested(100)), ("json-depth",), 2),
    Case("deep-objects-10k", "jsonl", between(_nested(10_000)), ("json-depth",), 2),
    Case("deep-list-10k", "jsonl", between(GOOD[:-1] + b', "x": ' + DEEP_LIST + b"}"), ("json-depth",), 2),
    Case("brackets-in-text", "jsonl", between(record(text="[" * 5000 + "{" * 5000)), (), 3),
    Case("invalid-utf8", "jsonl", between(b'{"id": "a", "text": "caf\xe9"}'), ("utf8-invalid",), 2),
    Case("overlong-utf8", "jsonl", between(b'{"id": "a", "text": "\xc0\xaf"}'), ("utf8-invalid",), 2),
    Case("nul-escaped", "jsonl", between(record(text="a\0b")), ("nul-byte",), 2),
    Case("nul-raw", "jsonl", between(GOOD.replace(b"Some", b"So\0me")), ("nul-byte",), 2),
    Case("control-raw", "jsonl", between(GOOD.replace(b"Some", b"So\x01me")), ("json-invalid",), 2),
    Case("cut-line", "jsonl", between(GOOD[:-10]), ("json-invalid",), 2),
    Case("two-objects-on-a-line", "jsonl", between(GOOD + GOOD), ("json-invalid",), 2),
    Case("single-quotes", "jsonl", between(b"{'id': 'a', 'text': 'b'}"), ("json-invalid",), 2),
    Case("list-line", "jsonl", between(b'["id", "text"]'), ("json-not-object",), 2),
    Case("null-line", "jsonl", between(b"null"), ("json-not-object",), 2),
    Case("string-line", "jsonl", between(b'"id"'), ("json-not-object",), 2),
    Case("empty-object", "jsonl", between(b"{}"), ("field-missing",), 2),
    Case("missing-id", "jsonl", between(b'{"text": "x"}'), (), 3),
    Case("empty-id", "jsonl", between(record(id="")), (), 3),
    Case("missing-text", "jsonl", between(b'{"id": "a"}'), ("field-missing",), 2),
    Case("null-text", "jsonl", between(record(text=None)), ("field-missing",), 2),
    Case("number-text", "jsonl", between(record(text=17)), ("field-type",), 2),
    Case("list-text", "jsonl", between(record(text=["a"])), ("field-type",), 2),
    Case("empty-text", "jsonl", between(record(text="")), (), 3),
    Case("list-license", "jsonl", between(record(license=["MIT"])), ("field-type",), 2),
    Case("object-license", "jsonl", between(record(license={"id": "MIT"})), ("field-type",), 2),
    Case("number-license", "jsonl", between(record(license=0)), ("field-type",), 2),
    Case("object-in-metadata-license", "jsonl", between(record(metadata={"license": {"a": 1}})), ("field-type",), 2),
    Case("string-metadata", "jsonl", between(record(metadata="x")), ("field-type",), 2),
    Case("list-owner", "jsonl", between(record(owner=["a"])), ("field-type",), 2),
    Case("null-license", "jsonl", between(record(license=None)), (), 3),
    Case("unknown-license", "jsonl", between(record(license="Zorglub 9.9")), (), 3),
    Case("zero-width-license", "jsonl", between(record(license="MI\u200bT\u2060")), (), 3),
    Case("license-of-1-mb", "jsonl", between(record(license="MIT " * 250_000)), ("field-too-long",), 2),
    Case("conflicting-tier", "jsonl", between(record(license="GPL-3.0-only", tier="pd")), (), 3),
    Case("invalid-tier", "jsonl", between(record(tier="gold")), (), 3),
    Case("number-tier", "jsonl", between(record(tier=1)), ("field-type",), 2),
    Case("traversal-id", "jsonl", between(record(id="../../etc/passwd")), (), 3),
    Case("control-id", "jsonl", between(record(id="a\nb\r\x1b[31m")), (), 3),
    Case("long-id", "jsonl", between(record(id="x" * 10_000)), ("field-too-long",), 2),
    Case("long-url", "jsonl", between(record(url="http://x/" + "y" * 10_000)), ("field-too-long",), 2),
    Case("int-id", "jsonl", between(record(id=17)), (), 3),
    Case("negative-int-id", "jsonl", between(record(id=-17)), (), 3),
    Case("bool-id", "jsonl", between(record(id=True)), ("field-type",), 2),
    Case("float-id", "jsonl", between(record(id=1.5)), ("field-type",), 2),
    Case("duplicate-ids", "jsonl", file(GOOD + b"\n" + GOOD + b"\n"), (), 2),
    Case("record-with-100k-keys", "jsonl", between(lambda: _many_keys(100_000)), (), 3),
    Case("word-of-20-mb", "jsonl", between(lambda: record(text="x" * (20 << 20))), (), 3),
    Case("combining-characters-only", "jsonl", between(record(text="\u0301" * 5000)), (), 3),
    Case("right-to-left-overrides", "jsonl", between(record(text="\u202eabc\u202d" * 100)), (), 3),
    Case("huge-line", "jsonl", between(lambda: b"x" * (65 << 20)), ("line-too-long",), 2),
]
