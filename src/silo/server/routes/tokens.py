"""The tokenizer over HTTP, at the root as other servers have it, so that an evaluation needs no copy of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from fastapi import Request
from pydantic import Field

from silo.server.models import ServedModel
from silo.server.options import Body, Ids
from silo.server.problems import Problem
from silo.server.service import Service, service_of


class TokenizeRequest(Body):
    """A text to be cut into tokens; `model` is needed where a server has several."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool = False


class DetokenizeRequest(Body):
    """Tokens to be written as text."""

    tokens: Ids = Field(max_length=1 << 20)
    model: str | None = None


def tokenize(request: Request, body: TokenizeRequest) -> dict[str, Any]:
    """The token ids of a text. The text of the end token alone is that token; anywhere else it is text."""
    model = _model(service_of(request), body.model)
    tokenizer = model.language_model.tokenizer
    ids = [tokenizer.begin] if body.prompt == model.end else tokenizer.encode([body.prompt])[0].tolist()
    ids = [tokenizer.begin, *ids] if body.add_special_tokens and ids[:1] != [tokenizer.begin] else ids
    return {"count": len(ids), "max_model_len": model.language_model.opened.context, "tokens": ids}


def detokenize(request: Request, body: DetokenizeRequest) -> dict[str, str]:
    """The text of token ids."""
    tokenizer = _model(service_of(request), body.model).language_model.tokenizer
    if body.tokens and max(body.tokens) >= tokenizer.vocabulary:
        raise Problem(400, "usage", f"token ids are below {tokenizer.vocabulary}", param="tokens")
    return {"prompt": tokenizer.decode(np.array(body.tokens, dtype=np.uint32))}


def tokenizer_info(request: Request, model: str | None = None) -> dict[str, Any]:
    """What a client must know to use the tokenizer."""
    served = _model(service_of(request), model)
    names = {
        "eos_token": served.end,
        "bos_token": served.end,
        "chat_template": None if served.chat is None else served.chat.source,
    }
    return {"tokenizer_class": "PreTrainedTokenizerFast", **names, "name_or_path": served.name}


def _model(service: Service, name: str | None) -> ServedModel:
    models = service.catalogue.models
    if name is None and len(models) > 1:
        raise Problem(400, "usage", "this server has several models: say which", param="model")
    return service.model(name if name is not None else next(iter(models)))
