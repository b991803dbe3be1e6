"""`silo serve`: models and stores over HTTP, until it is stopped."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silo.cli import show
from silo.errors import SiloError

if TYPE_CHECKING:
    from silo.server.config import ServerRecipe


def add_command(nouns: Any, common: argparse.ArgumentParser) -> None:
    """Add `silo serve`."""
    parser = nouns.add_parser("serve", parents=[common], help="models and stores behind an OpenAI-compatible API")
    parser.add_argument("config", nargs="?", metavar="CONFIG.toml", help="models, stores and limits; or use --model")
    parser.add_argument("--model", metavar="DIR", help="the language model")
    parser.add_argument("--store", action="append", default=[], metavar="PATH", help="a store of it; may be repeated")
    parser.add_argument("--host", metavar="ADDRESS", help="where to listen: 127.0.0.1; any other needs --keys")
    parser.add_argument("--port", type=int, metavar="N", help="8000; 0 for any that is free")
    parser.add_argument("--keys", metavar="FILE", help="keys made by `silo keys create`")
    parser.add_argument("--home", metavar="DIR", help="the home folder; $SILO_HOME or ./silo-home without it")
    parser.add_argument(
        "--policy", default="", metavar="EXPR", help="a limit on all requests, beside those of the file"
    )
    parser.add_argument("--guard", type=int, metavar="N", help="a limit on all requests, beside those of the file")
    parser.add_argument("--ray", metavar="ADDRESS", help="search the stores on a Ray cluster: HOST:PORT, auto or local")
    parser.add_argument("--parts", type=int, metavar="N", help="with --ray: parts of each store; one for each node")
    parser.add_argument(
        "--replicas",
        type=int,
        metavar="N",
        help="with --ray: processes of the cluster that write texts, each with a model",
    )
    show.add_device(parser)
    parser.set_defaults(run=_serve)


def _serve(arguments: argparse.Namespace) -> int:
    recipe = _recipe(arguments)
    try:
        from silo.server.app import serve
        from silo.server.replicas import serve_replicas
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "uvicorn", "starlette", "pydantic"):
            raise
        hint = "install it with: pip install 'silo-lm[serve]'"
        raise SiloError("extra-missing", f"serving needs {error.name}", hint) from None

    def announce(address: str) -> None:
        if arguments.json:
            show.print_json({"address": address, "models": list(recipe.models)})
        show.say(f"serving {', '.join(recipe.models)} at {address}/v1", quiet=arguments.quiet)
        show.say(f"the page: {address}/", quiet=arguments.quiet)

    (serve_replicas if recipe.replicas else serve)(recipe, announce)
    return 0


def _recipe(arguments: argparse.Namespace) -> ServerRecipe:
    """What the file and the options say, the options last; refused if it cannot be served."""
    from dataclasses import replace

    from silo.server.config import ServerRecipe, add_model, narrow, read_config, require_servable

    recipe = read_config(Path(arguments.config)) if arguments.config else ServerRecipe(home=str(show.home(arguments)))
    if arguments.model:
        recipe = add_model(recipe, arguments.model, arguments.store)
    elif arguments.store:
        raise SiloError("usage", "--store belongs to --model", "name the model too")
    names = {"host", "port", "keys", "home", "threads", "ray", "parts", "replicas"}
    if arguments.config:
        names -= arguments.stated  # a file that is named counts more than one that is found
    given = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    recipe = narrow(replace(recipe, **given), arguments.policy, arguments.guard or 0)
    require_servable(recipe)
    return recipe
