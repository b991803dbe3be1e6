"""Where everything of a store lies: the one place that spells its file names.

`data/` is the documents (`manifest.json` and `buckets/`) and nothing else; an erasure leaves no trace in it. Beside it
lie the model's codec and tokenizer, the evidence (`log.jsonl`, `receipts/`, `keys/`, `suppression/`, `ledger.jsonl`),
an erasure under way (`pending.json`, `erasing/`), documents on their way in (`adding/`), and locks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from silo.files import MANIFEST


@dataclass(frozen=True, slots=True)
class StorePaths:
    """The files of the store at `root`."""

    root: Path

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def manifest(self) -> Path:
        return self.data / MANIFEST

    @property
    def buckets(self) -> Path:
        return self.data / "buckets"

    @property
    def codec(self) -> Path:
        return self.root / "codec"

    @property
    def tokenizer(self) -> Path:
        return self.root / "tokenizer.json"

    @property
    def model_place(self) -> Path:
        """Says where the store's model was when the store was made; a convenience that shapes nothing."""
        return self.root / "store.json"

    @property
    def log(self) -> Path:
        return self.root / "log.jsonl"

    @property
    def receipts(self) -> Path:
        return self.root / "receipts"

    @property
    def signing_key(self) -> Path:
        return self.root / "keys" / "receipts.pem"

    @property
    def public_key(self) -> Path:
        return self.root / "keys" / "receipts.pem.pub"

    @property
    def key_elsewhere(self) -> Path:
        """Says that this is a copy of a store on a machine without its signing key, which is no loss."""
        return self.root / "keys" / "elsewhere"

    @property
    def suppression(self) -> Path:
        return self.root / "suppression"

    @property
    def pending(self) -> Path:
        return self.root / "pending.json"

    @property
    def erasing(self) -> Path:
        """The state before an erasure, as far as it concerns it, until its checks were made."""
        return self.root / "erasing"

    @property
    def adding(self) -> Path:
        return self.root / "adding"

    @property
    def usage(self) -> Path:
        return self.root / "ledger.jsonl"

    @property
    def usage_lock(self) -> Path:
        return self.root / "ledger.lock"

    @property
    def lock(self) -> Path:
        """Held by the one writer."""
        return self.root / "lock"

    @property
    def readers(self) -> Path:
        return self.root / "readers"

    def reader_lock(self, generation: str) -> Path:
        """Held by everybody who reads a generation, which is given by its fingerprint."""
        return self.readers / generation[:32]

    def beside_data(self) -> list[Path]:
        """Everything but the data, an erasure under way, which goes last, and what the model brought along."""
        left_out = {self.data, self.pending, self.erasing, self.codec, self.tokenizer}
        return [path for path in self.root.iterdir() if path not in left_out]

    def evidence(self) -> list[Path]:
        """What was promised and noted: it goes on where data is put back from a backup."""
        kept = (self.log, self.suppression, self.receipts, self.signing_key.parent, self.usage)
        return [*kept, self.pending, self.erasing]

    def lasting(self) -> list[Path]:
        """What neither a change nor a request alters, beside the data: what the model brought along, and strays."""
        passing = {self.adding, self.readers, self.lock, self.usage_lock, self.data, *self.evidence()}
        return [path for path in self.root.iterdir() if path not in passing and path.suffix != ".partial"]
