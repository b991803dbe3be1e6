from __future__ import annotations

from pathlib import Path

import pytest

from tests.sources.reading import one, read_source, tiers, write

MODERN = """\ufeffThe Project Gutenberg eBook of A Long
Book

This eBook is for the use of anyone anywhere in the United States and most other parts of the world.

Title: A Long
        Book

Author: Ann Author

Release date: June 1, 1998 [eBook #1342]
                Most recently updated: April 14, 2023

Language: English

*** START OF THE PROJECT GUTENBERG EBOOK A LONG
BOOK ***

It was a dark night.

The end.

End of the Project Gutenberg EBook of A Long Book

*** END OF THE PROJECT GUTENBERG EBOOK A LONG BOOK ***

Creating the works from print editions not protected by U.S. copyright
law means that no one owns a United States copyright in these works.
"""
OLD = """Project Gutenberg's Etext of Older Book, by Someone
January, 1994  [Etext #99]

***START**THE SMALL PRINT!**FOR PUBLIC DOMAIN ETEXTS**START***
Please read this.
*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*

Once upon a time.

End of Project Gutenberg's Etext of Older Book
"""


def test_header_and_trailer_become_facts_and_evidence(tmp_path: Path) -> None:
    write(tmp_path, {"pg1342.txt": MODERN.replace("\n", "\r\n")})
    book = one(read_source(tmp_path, "gutenberg", "*.txt"))
    assert book.text == "It was a dark night.\n\nThe end."
    assert (book.external_id, book.owner, book.source) == ("1342", "Ann Author", "Project Gutenberg")
    assert book.url == "https://www.gutenberg.org/ebooks/1342"
    assert (book.meta["title"], book.meta["ebook"], book.meta["language"]) == ("A Long Book", "1342", "English")
    assert tiers(book) == ["pd"]


def test_the_old_small_print_is_understood(tmp_path: Path) -> None:
    write(tmp_path, {"old.txt": OLD})
    book = one(read_source(tmp_path, "gutenberg", "old.txt"))
    assert (book.text, book.external_id, tiers(book)) == ("Once upon a time.", "99", ["pd"])


@pytest.mark.parametrize(
    "claim",
    [
        "** This is a COPYRIGHTED Project Gutenberg eBook, Details Below **",
        "Copyright (C) 2004 by Ann Author",
        "Rights: Copyrighted. Read the copyright notice inside this book for details.",
    ],
)
def test_a_copyrighted_book_is_restricted(tmp_path: Path, claim: str) -> None:
    write(tmp_path, {"a.txt": MODERN.replace("Title:", f"{claim}\n\nTitle:")})
    assert "restricted" in tiers(one(read_source(tmp_path, "gutenberg", "a.txt")))


def test_without_a_statement_there_is_no_evidence(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": MODERN.partition("Creating")[0]})
    assert one(read_source(tmp_path, "gutenberg", "a.txt")).evidence == ()


def test_an_older_encoding_is_used_if_the_header_names_it(tmp_path: Path) -> None:
    text = MODERN.lstrip("\ufeff").replace("Language:", "Character set encoding: ISO-8859-1\n\nLanguage:")
    write(tmp_path, {"a.txt": text.replace("dark night", "dark café").encode("latin-1")})
    assert "dark café" in one(read_source(tmp_path, "gutenberg", "a.txt")).text
