from __future__ import annotations

import gzip
from email.message import EmailMessage
from pathlib import Path

from tests.sources.reading import good, one, read_source, write


def as_mbox(*messages: EmailMessage) -> bytes:
    return b"".join(b"From ann@example.org Mon Jan  1 00:00:00 2024\n" + bytes(item) + b"\n\n" for item in messages)


def message(body: str = "Hello.\n", **headers: str) -> EmailMessage:
    made = EmailMessage()
    made["From"] = "Ann Author <Ann@Example.org>"
    made["Subject"] = "Grüße"
    made["Message-ID"] = "<1@example.org>"
    for name, value in headers.items():
        made[name] = value
    made.set_content(body)
    return made


def test_subject_and_body_are_the_text_and_the_sender_owns_it(tmp_path: Path) -> None:
    write(tmp_path, {"list.mbox": as_mbox(message("Hello café.\n", Date="Mon, 01 Jan 2024 00:00:00 +0000"))})
    found = one(read_source(tmp_path, "mbox", "list.mbox"))
    assert found.text == "Grüße\n\nHello café."
    assert (found.owner, found.domain, found.source, found.external_id) == (
        "ann@example.org",
        "mail",
        "list",
        "1@example.org",
    )
    assert found.meta == {"subject": "Grüße", "date": "Mon, 01 Jan 2024 00:00:00 +0000"}
    assert found.evidence == ()


def test_html_is_used_only_without_plain_text_and_attachments_never(tmp_path: Path) -> None:
    both = message("Plain.\n")
    both.add_alternative("<p>HTML.</p>", subtype="html")
    both.add_attachment("secret", filename="a.txt")
    only = EmailMessage()
    only["From"] = "bob@example.org"
    only.set_content("<style>x</style><p>Only <b>HTML</b>.</p>", subtype="html")
    write(tmp_path, {"a.mbox": as_mbox(both, only)})
    first, second = good(read_source(tmp_path, "mbox", "a.mbox"))
    assert first.text == "Grüße\n\nPlain."
    assert second.text == "Only HTML."


def test_messages_end_where_the_next_one_begins(tmp_path: Path) -> None:
    start = b"From a at example.org  Mon Jan  1 00:00:00 2024\n"
    quoted = b">From a at example.org  Mon Jan  1 00:00:00 2024\n"
    raw = start + b"Subject: one\n\nFrom here on.\n\n" + quoted + b"\n" + start + b"Subject: two\n\nx\n"
    write(tmp_path, {"a.mbox.gz": gzip.compress(raw)})
    first, second = good(read_source(tmp_path, "mbox", "a.mbox.gz", license="CC0-1.0", owner="list"))
    assert first.text == "one\n\nFrom here on.\n\nFrom a at example.org  Mon Jan  1 00:00:00 2024"
    assert (second.text, second.owner, second.evidence[0].method) == ("two\n\nx", "list", "recipe")
    assert first.external_id != second.external_id
