"""Notes about a garden and a boat, a store of them, and models that say what a test wants them to say.

A speaker is a real LLaMA network whose layers add nothing: the next word follows from the last one alone, so that it
recites a sentence whatever it was asked. What a reply makes of that is what the tests are about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaForCausalLM

from silo.lm.model import save_model
from silo.lm.network import Preset, make_network
from silo.lm.tokenizer import save_tokenizer
from silo.pairing import create_store
from silo.records import Candidate, Document
from silo.rights import assess
from silo.sources import judge
from silo.store.store import Store
from silo.text.chat import TEMPLATE

BEGIN, UNKNOWN, ASKED, ANSWER, END = "<|endoftext|>", "<unk>", "<|asked|>", "<|answer|>", "<|end|>"
CHAT = (
    f"{{% for message in messages %}}{{{{ '{ASKED}' if message.role != 'assistant' else '{ANSWER}' }}}}"
    f"{{{{ message.content }}}}{END}{{% endfor %}}{{% if add_generation_prompt %}}{ANSWER}{{% endif %}}"
)

NOTES = {
    "garden.md": "Slugs eat the lettuce unless there is a ring of sand around the bed. Compost is turned in October.",
    "boat.md": f"In winter the boat stands in a barn. It is {END} blue. The boat was painted in 1987 by Anna Berg.",
    "house.md": "If the heat pump shows error 14, the outer unit is frozen. Switch it off for an hour.",
}
LICENCES = {"garden.md": "CC-BY-4.0"}


def speaker(root: Path, says: str = "", *, texts: Iterable[str] = NOTES.values(), template: str = CHAT) -> Path:
    """A model that answers with a sentence, no word of which may come twice; it knows the words of the texts."""
    whole = _pieces(says)
    known = {piece for text in (*texts, *NOTES.values()) for piece in _pieces(text)}
    words = [BEGIN, UNKNOWN, ASKED, ANSWER, END, *sorted(known | set(whole))]
    file = _write_tokenizer(root / "tokenizer", words)
    if template:
        (file.parent / TEMPLATE).write_text(template, encoding="utf-8")
    follows = dict(pairwise([ANSWER if template else UNKNOWN, *whole, END if template else BEGIN]))
    assert len(follows) == len(whole) + 1, "a word comes twice"
    save_model(_recite(words, follows), file, root / "model", {"origin": "test"})
    return root / "model"


def _pieces(text: str) -> list[str]:
    return [piece for piece, _ in pre_tokenizers.Metaspace(prepend_scheme="never").pre_tokenize_str(text)]


def _write_tokenizer(folder: Path, words: list[str]) -> Path:
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="never")
    tokenizer.add_special_tokens([AddedToken(mark, normalized=False) for mark in (BEGIN, ASKED, ANSWER, END)])
    save_tokenizer(tokenizer, folder, BEGIN)
    return folder / "tokenizer.json"


def _recite(words: list[str], follows: Mapping[str, str]) -> LlamaForCausalLM:
    """One direction for each word, a head that turns it to the next, and layers that add nothing."""
    width = -(-len(words) // 8) * 8
    shape = Preset("speaker", width, 1, 1, 8, vocabulary=len(words), context=2048, tied=False)
    network = make_network(shape, vocabulary=len(words), begin=0, seed=1)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if weight.dim() > 1:
                weight.zero_()
            if "embed" in name:
                weight.fill_diagonal_(1.0)
            if "lm_head" in name:
                for before, after in follows.items():
                    weight[words.index(after), words.index(before)] = 4.0
    return network


def note_store(root: Path, model: Path, notes: Mapping[str, str] = NOTES, *, passage_tokens: int = 0) -> Store:
    """A store of notes for a model."""
    store = create_store(root, model, searches=("ngram", "bm25"), passage_tokens=passage_tokens)
    store.add([_note(name, text) for name, text in notes.items()])
    return store


def _note(name: str, text: str) -> Document:
    evidence = (assess(LICENCES[name], where="record"),) if name in LICENCES else ()
    return judge(Candidate(name, text, "test", "notes", evidence, owner="A. Writer"))
