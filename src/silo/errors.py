"""Every error a user can meet: a stable code, a message, a hint and an exit status.

`CODES` is the whole list. A code also names why a single record was quarantined, so that the command line,
the quarantine file and (later) the server speak the same language. `docs/errors.md` documents each of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class ExitStatus(IntEnum):
    """Process exit statuses; they never change meaning."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    INPUT = 3
    DAMAGED = 4
    REFUSED = 5
    MISSING = 6
    BUSY = 7
    RESOURCES = 8
    SEEN = 10
    NEAR_COPY = 11
    NOT_FOUND = 12
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Kind:
    """What every error of one code has in common."""

    status: ExitStatus
    hint: str


_INPUT, _USAGE = ExitStatus.INPUT, ExitStatus.USAGE

CODES: dict[str, Kind] = {
    # usage and recipes
    "usage": Kind(_USAGE, "run the command with --help to see what it takes"),
    "recipe-missing": Kind(_USAGE, "give the path of a recipe, for example recipes/demo.toml"),
    "recipe-syntax": Kind(_USAGE, "fix the TOML at the line named in the message"),
    "recipe-key": Kind(_USAGE, "remove the key or use the name suggested in the message"),
    "recipe-value": Kind(_USAGE, "give a value of the kind named in the message"),
    "policy-invalid": Kind(_USAGE, "write it like: tier <= 'sw' and owner not in ['A. Writer', 'B. Writer']"),
    "nothing-selected": Kind(_INPUT, "`silo store list` shows what is there"),
    "would-empty": Kind(_USAGE, "`--dry-run` lists them; if they are meant to go, say `--yes`"),
    "document-ambiguous": Kind(_USAGE, "write id: before silo's id, external: before the id that the record had"),
    "out-exists": Kind(_USAGE, "choose another --out, or pass --force to replace what is there"),
    # input as a whole
    "input-missing": Kind(_INPUT, "check the path; silo never fetches anything by itself"),
    "input-unreadable": Kind(_INPUT, "check the permissions of the file"),
    "not-writable": Kind(_INPUT, "check who may write there; to read a store takes no right to write"),
    "input-empty": Kind(_INPUT, "a step that touches nothing is an error: check the paths and filters of the source"),
    "archive-damaged": Kind(_INPUT, "the compressed file is cut off or broken: copy it again"),
    "archive-bomb": Kind(_INPUT, "the file unpacks to far more than it holds; raise max_ratio if you trust it"),
    "path-unsafe": Kind(_INPUT, "links and '..' that leave the source folder are not followed"),
    "file-too-large": Kind(_INPUT, "raise max_record_bytes if the file is meant to be one document"),
    "tokenizer-invalid": Kind(_INPUT, "give a Hugging Face tokenizer.json, or leave --tokenizer out to use bytes"),
    # one record
    "json-invalid": Kind(_INPUT, "one JSON object per line, in UTF-8"),
    "json-duplicate-key": Kind(_INPUT, "a field may be given only once: nobody can tell which one counts"),
    "json-number": Kind(_INPUT, "NaN, Infinity and numbers of thousands of digits are not accepted"),
    "json-depth": Kind(_INPUT, "nest objects and lists at most 64 deep"),
    "json-not-object": Kind(_INPUT, "each line must be an object with at least id and text"),
    "utf8-invalid": Kind(_INPUT, "convert the file to UTF-8"),
    "surrogate-lone": Kind(_INPUT, "the text holds half of a surrogate pair; write it again as UTF-8"),
    "nul-byte": Kind(_INPUT, "the text holds NUL bytes and is probably not text"),
    "line-too-long": Kind(_INPUT, "raise max_record_bytes, or split the document"),
    "field-missing": Kind(_INPUT, "every record needs a text; an id is made where there is none"),
    "field-type": Kind(_INPUT, "see docs/build-a-corpus.md for the type of each field"),
    "field-too-long": Kind(_INPUT, "ids, names and licences are short; long values belong into text"),
    "not-text": Kind(_INPUT, "only text can be read here; documents are read from a folder, others convert first"),
    "not-records": Kind(_INPUT, "give JSON lines (one object per line) or Parquet; other files go into a folder"),
    "mail-invalid": Kind(_INPUT, "the message cannot be parsed as mail"),
    "warc-invalid": Kind(_INPUT, "the WARC record cannot be parsed"),
    "parquet-invalid": Kind(_INPUT, "write the file again with the columns id, text, source, domain, license"),
    "metadata-invalid": Kind(_INPUT, "fix the metadata file named in the message"),
    "signal-invalid": Kind(_INPUT, "an unreadable preference signal counts as a no; fix the file"),
    "document-invalid": Kind(_INPUT, "open the file in the program it comes from and save it again"),
    "document-encrypted": Kind(_INPUT, "save the file without a password; silo never asks for one"),
    "document-no-text": Kind(_INPUT, "pictures of text need text recognition (OCR) first"),
    "parse-timeout": Kind(_INPUT, "raise max_parse_seconds if you trust the file, or split it"),
    "parse-memory": Kind(_INPUT, "raise max_parse_mb if you trust the file, or split it"),
    "parse-crashed": Kind(_INPUT, "the library that reads such files failed: save the file again or convert it"),
    "gutenberg-markers": Kind(_INPUT, "the START and END lines of Project Gutenberg are missing or out of order"),
    # artefacts and the machine
    "not-a-corpus": Kind(_INPUT, "give a directory made by `silo corpus build`"),
    "corpus-damaged": Kind(ExitStatus.DAMAGED, "build the corpus again: files differ from the manifest"),
    "license-table": Kind(ExitStatus.DAMAGED, "the licence table is inconsistent: undo the last edit of it"),
    "not-a-model": Kind(_INPUT, "give a directory made by `silo lm train` or `silo lm import`"),
    "model-damaged": Kind(ExitStatus.DAMAGED, "train or import the model again: files differ from the manifest"),
    "template-invalid": Kind(_INPUT, "give the model a chat_template.jinja that writes every message once, or none"),
    "training-refused": Kind(ExitStatus.REFUSED, "take the document out, or name tiers that may train: pd, sw, by"),
    "model-unknown-data": Kind(ExitStatus.REFUSED, "only a model trained by `silo lm train` can say what it has seen"),
    "training-diverged": Kind(ExitStatus.RESOURCES, "lower the learning rate; the last good checkpoint is kept"),
    "codec-invalid": Kind(ExitStatus.DAMAGED, "learn the codec again with `silo lm codec`"),
    "not-a-store": Kind(_INPUT, "give a directory made by `silo store create`"),
    "store-damaged": Kind(ExitStatus.DAMAGED, "restore the store from a copy, or make it again: files were changed"),
    "store-mismatch": Kind(ExitStatus.REFUSED, "use the model and codec that the store was made with"),
    "disk-failed": Kind(ExitStatus.RESOURCES, "check the disk, then run again: nothing acknowledged is lost"),
    "search-missing": Kind(_USAGE, "the store was made without that search: see `silo store create --search`"),
    "search-unfit": Kind(ExitStatus.DAMAGED, "the codec does not suit these documents: learn one with more bytes"),
    "settings-missing": Kind(_INPUT, "make settings with `silo store tune`, or leave --settings out"),
    "settings-invalid": Kind(_USAGE, "give values of the kind named in the message"),
    "tuning-refused": Kind(ExitStatus.REFUSED, "tune on validation text; a test split is only for the last run"),
    "task-invalid": Kind(_INPUT, "fix the file and key named in the message; docs/evaluate.md lists the keys"),
    "receipt-invalid": Kind(
        ExitStatus.DAMAGED, "the receipt was changed or was signed by another key: ask for it again"
    ),
    "check-failed": Kind(
        ExitStatus.DAMAGED,
        "end what still reads old data, run `silo store verify`, keep the receipt: it says so too",
    ),
    "check-not-made": Kind(ExitStatus.DAMAGED, "run `silo store verify`; what was not checked is not proven"),
    "key-not-given": Kind(
        _INPUT, "give the public key of the store's owner with --key; get it another way than the receipt"
    ),
    "device-missing": Kind(ExitStatus.MISSING, "leave --device out for the processor, or give auto for what is there"),
    "keys-invalid": Kind(_INPUT, "put the file back from a copy, or make new keys with `silo keys create`"),
    "extra-missing": Kind(ExitStatus.MISSING, "install the extra named in the message"),
    "cluster-unreachable": Kind(
        ExitStatus.MISSING, "start one with `ray start --head`, or give `--ray local` for one on this machine"
    ),
    "cluster-unavailable": Kind(ExitStatus.RESOURCES, "see with `ray status` which nodes are alive, and ask again"),
    "cluster-unfit": Kind(
        ExitStatus.REFUSED,
        "every machine needs the same version of silo, and must see the same files under the same paths",
    ),
    "busy": Kind(ExitStatus.BUSY, "another process is writing there: wait for it or choose another --out"),
    "remote-failed": Kind(ExitStatus.RESOURCES, "check network and credentials, then run the same command again"),
    "remote-conflict": Kind(ExitStatus.BUSY, "run the same command again: it goes on with what is there now"),
    "remote-damaged": Kind(ExitStatus.DAMAGED, "put the object back from a version or copy, or restore a backup"),
    "key-missing": Kind(ExitStatus.MISSING, "copy the key to the place named in the message, or erase where it is"),
    "disk-full": Kind(ExitStatus.RESOURCES, "free some space and run the same command again: it resumes"),
    "out-of-memory": Kind(ExitStatus.RESOURCES, "lower bloom_mb, shard_mb or workers in the recipe"),
    "interrupted": Kind(ExitStatus.INTERRUPTED, "run the same command again: it resumes"),
    "worker-died": Kind(
        ExitStatus.RESOURCES, "a worker was killed, often for lack of memory: run again with fewer workers"
    ),
    "internal": Kind(ExitStatus.INTERNAL, "this is a bug in silo: please report it with the output of --debug"),
}


def nearest_names(wanted: str, known: Iterable[str], *, most: int = 3) -> list[str]:
    """Names that may have been meant: of another case, with this one inside, or much alike."""
    import difflib

    names, folded = set(known) - {wanted}, wanted.casefold()
    same = sorted(name for name in names if name.casefold() == folded)
    if same:
        return same[:most]
    inside = sorted(
        (name for name in names if folded and folded in name.casefold()), key=lambda name: (len(name), name)
    )
    return inside[:most] or difflib.get_close_matches(wanted, sorted(names), n=most)


def did_you_mean(wanted: str, known: Iterable[str], *, most: int = 3) -> str:
    """A question that offers the nearest names, nothing if none is near."""
    near = nearest_names(wanted, known, most=most)
    return f"did you mean {' or '.join(near)}?" if near else ""


class SiloError(Exception):
    """An error for the person who can fix it: `code` is stable, `message` says what, `hint` says what to do."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        kind = CODES[code]
        self.code = code
        self.message = message
        self.hint = hint or kind.hint
        self.status = kind.status
        super().__init__(code, message, hint)

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"

    def as_json(self) -> dict[str, str | int]:
        """The fields a script reads."""
        return {"code": self.code, "message": self.message, "hint": self.hint, "status": int(self.status)}
