"""An opened corpus directory: views by tier and domain that never yield an opted-out document."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zstandard import ZstdError

from silo.corpus.shards import Shard, read_lines
from silo.errors import SiloError
from silo.files import (
    disk_errors,
    file_sha256,
    locked_directory,
    nearest_path,
    read_json,
    read_manifest,
    write_json,
)
from silo.records import Document, Tier
from silo.remote.folder import fetched, publish_changes

FORMAT = "silo-corpus-1"
OPT_OUTS = "opt-outs.json"


@dataclass(frozen=True, slots=True)
class Corpus:
    """A whole corpus; `manifest` is checked when it is opened."""

    root: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, root: Path) -> Corpus:
        """Open a directory made by `silo corpus build`, or a copy of what it published at a URL; others are refused."""
        root = fetched(root)
        if not root.is_dir():
            raise SiloError("input-missing", f"there is no directory {root}", nearest_path(root))
        manifest = read_manifest(root, missing="not-a-corpus", damaged="corpus-damaged")
        if manifest.get("format") != FORMAT:
            raise SiloError("not-a-corpus", f"{root} has format {manifest.get('format')!r}, not {FORMAT!r}")
        return cls(root, manifest)

    @property
    def fingerprint(self) -> str:
        """Names the content: two corpora with one fingerprint are the same bytes."""
        return str(self.manifest["fingerprint"])

    def shards(self, *, tiers: Iterable[Tier] = tuple(Tier), domains: Iterable[str] | None = None) -> list[Shard]:
        """The shards of some tiers and domains."""
        wanted_tiers = set(tiers)
        wanted_domains = None if domains is None else set(domains)
        return [
            Shard(self.root / "shards", item["stem"], Tier(item["tier"]), item["domain"], self.manifest["vocabulary"])
            for item in self.manifest["shards"]
            if item["tier"] in wanted_tiers and (wanted_domains is None or item["domain"] in wanted_domains)
        ]

    def documents(
        self, *, tiers: Iterable[Tier] = tuple(Tier), domains: Iterable[str] | None = None
    ) -> Iterator[Document]:
        """The documents of some tiers and domains, opted-out ones left out."""
        opted_out = self.opted_out()
        for shard in self.shards(tiers=tiers, domains=domains):
            for document in shard.documents():
                if document.id not in opted_out:
                    yield document

    def rejected(self) -> Iterator[dict[str, Any]]:
        """The documents that the build left out, with the reason for each; no text."""
        return self._listed("rejected")

    def conflicts(self) -> Iterator[dict[str, Any]]:
        """The documents that were taken though statements about their licence disagree, with both in words."""
        return self._listed("conflicts")

    def laundering(self) -> list[dict[str, Any]]:
        """Texts that came under two licences: which document was kept, and which was dropped."""
        try:
            pairs: list[dict[str, Any]] = read_json(self.root / "laundering.json")
        except (OSError, ValueError, RecursionError):
            raise SiloError("corpus-damaged", "laundering.json cannot be read", "build the corpus again") from None
        return pairs

    def _listed(self, folder: str) -> Iterator[dict[str, Any]]:
        for path in sorted((self.root / folder).glob("*.jsonl.zst")):
            try:
                yield from map(json.loads, read_lines(path))
            except (OSError, ValueError, ZstdError, RecursionError):
                raise SiloError("corpus-damaged", f"{path.name} cannot be read", "build the corpus again") from None

    def opted_out(self) -> frozenset[str]:
        """Ids of documents that must no longer be used."""
        path = self.root / OPT_OUTS
        if not path.exists():
            return frozenset()
        try:
            ids = read_json(path)
        except (ValueError, RecursionError):
            ids = None
        if not isinstance(ids, list) or not all(isinstance(item, str) for item in ids):
            hint = "restore it from a copy: without it nobody knows who opted out"
            raise SiloError("corpus-damaged", f"{path} is not a list of ids", hint)
        return frozenset(ids)

    def opt_out(self, ids: Iterable[str]) -> None:
        """Take documents out of every later view, durably; whoever does so at the same time is waited for."""
        with disk_errors(self.root), locked_directory(self.root, wait=True):
            write_json(self.root / OPT_OUTS, sorted(self.opted_out() | set(ids)))
        publish_changes(self.root)

    def verify(self) -> None:
        """Compare every file with the manifest."""
        for name, expected in self.manifest["files"].items():
            path = self.root / name
            if not path.is_file():
                raise SiloError("corpus-damaged", f"{name} is missing")
            if file_sha256(path) != expected:
                raise SiloError("corpus-damaged", f"{name} differs from the manifest")
