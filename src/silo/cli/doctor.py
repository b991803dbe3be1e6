"""`silo doctor`: what this machine and installation have, and what is missing for which feature."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from silo import __version__
from silo.cli import show
from silo.cli.arguments.config import FILE, KEYS, resolve, statements
from silo.errors import SiloError

NEEDED = (
    "accelerate",
    "cryptography",
    "faiss-cpu",
    "fsspec",
    "gguf",
    "jinja2",
    "license-expression",
    "matplotlib",
    "numba",
    "numpy",
    "packaging",
    "pyarrow",
    "pydivsufsort",
    "rich",
    "safetensors",
    "tokenizers",
    "torch",
    "transformers",
    "zstandard",
)
EXTRAS = {
    "docs": ("pypdfium2", "PDF files in folders"),
    "warc": ("fastwarc", "WARC archives as a source"),
    "hub": ("huggingface_hub", "Hugging Face hub data sets as a source"),
    "serve": ("fastapi", "silo serve"),
    "ray": ("ray", "several machines: --ray"),
    "s3": ("s3fs", "stores and corpora on S3"),
}


def add_command(nouns: Any, common: argparse.ArgumentParser) -> None:
    """Add `silo doctor`."""
    parser = nouns.add_parser("doctor", parents=[common], help="say what is installed and what is missing")
    parser.add_argument("--warm", action="store_true", help="compile the decode engine now instead of at its first use")
    parser.add_argument(
        "--model", metavar="DIR", help="say who decodes this model: the engine, or transformers and why"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    report = {**examine(), "configuration": _configuration()}
    if arguments.warm:
        report["machine"]["decode_engine"] = _warm(quiet=arguments.quiet)
    if arguments.model:
        report["machine"]["model_decoded_by"] = decoded_by(Path(arguments.model))
    if arguments.json:
        show.print_json(report)
    else:
        show.table("machine", ("what", "value"), [[key, str(value)] for key, value in report["machine"].items()])
        rows = [[row["package"], row["version"] or "missing", row["for"], row["fix"]] for row in report["packages"]]
        show.table("packages", ("package", "version", "for", "how to get it"), rows)
        said = [[row["key"], _shown(row["value"]), row["from"]] for row in report["configuration"]]
        show.table(f"defaults: flags, then $SILO_*, ./{FILE}, {FILE} of the home", ("key", "value", "from"), said)
    return 0 if report["complete"] else 6


def _warm(*, quiet: bool) -> str:
    from silo.lm.engine.engine import is_compiled, warm

    if not is_compiled():
        show.say("compiling the decode engine, about ten seconds", quiet=quiet)
    begun = time.perf_counter()
    warm()
    return f"compiled, ready in {time.perf_counter() - begun:.1f} s"


def decoded_by(model: Path) -> str:
    """Who decodes a model."""
    from silo.lm.engine.engine import why_unsupported

    if not (model / "config.json").is_file():
        raise SiloError("input-missing", f"{model} is no model directory: it has no config.json")
    reason = why_unsupported(model)
    return f"transformers: {reason}" if reason else "the decode engine"


def _configuration() -> list[dict[str, Any]]:
    """Every default and where it comes from; for policy and guard, all that narrow them."""
    stated = statements()
    found = [(key, *resolve(key, stated)) for key in KEYS]
    return [{"key": key, "value": value, "from": origin or "default"} for key, value, origin in found]


def _shown(value: Any) -> str:
    return "" if value is None else ", ".join(value) if isinstance(value, tuple) else str(value)


def examine() -> dict[str, Any]:
    """Facts about the machine and the packages; `complete` is false if a needed package is missing."""
    needed = [_package(name, "silo itself", "pip install silo-lm") for name in NEEDED]
    extras = [_package(name, use, f"pip install 'silo-lm[{extra}]'") for extra, (name, use) in EXTRAS.items()]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "complete": all(row["version"] for row in needed),
        "machine": {
            "silo": __version__,
            "python": platform.python_version(),
            "executable": sys.executable,
            "system": f"{platform.system()} {platform.machine()}",
            "cores": len(os.sched_getaffinity(0)),
            "memory_gb": round(memory / 1e9, 1),
            "free_disk_gb": round(shutil.disk_usage(Path.cwd()).free / 1e9, 1),
        },
        "packages": needed + extras,
    }


def _package(name: str, use: str, fix: str) -> dict[str, str]:
    from importlib import metadata

    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        version = ""
    return {"package": name, "version": version, "for": use, "fix": "" if version else fix}
