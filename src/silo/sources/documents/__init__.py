"""Files that people have (PDF, Office, e-books, pages, tables, notebooks, mail) as text with its places.

`kinds` is the table of them, `parser` reads a file in a process of its own that may be killed, and the other modules
are one parser each: a function from bytes and limits to a `Parsed`.
"""
