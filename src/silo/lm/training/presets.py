"""The shapes of networks that can be trained, by name; known without torch, so that a wrong name costs no time."""

from __future__ import annotations

from dataclasses import dataclass

from silo.errors import SiloError, did_you_mean


@dataclass(frozen=True, slots=True)
class Preset:
    """The shape of a network. `vocabulary` is what a tokenizer for it should have; rows are padded to a multiple."""

    name: str
    width: int
    layers: int
    heads: int
    feed_forward: int
    vocabulary: int
    context: int
    tied: bool
    vocabulary_multiple: int = 1


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("demo", 256, 4, 4, 576, vocabulary=8192, context=1024, tied=True),
        Preset("mini", 192, 4, 3, 512, vocabulary=8192, context=512, tied=True),
        Preset("mini-deep", 144, 8, 3, 384, vocabulary=8192, context=512, tied=True),
        Preset("mini-wide", 256, 2, 4, 576, vocabulary=8192, context=512, tied=True),
        Preset("small", 384, 6, 6, 1024, vocabulary=16384, context=1024, tied=True),
        Preset("160m", 768, 12, 12, 2048, vocabulary=50277, context=2048, tied=False, vocabulary_multiple=256),
        Preset("1.3b", 2048, 24, 16, 5632, vocabulary=50277, context=2048, tied=False, vocabulary_multiple=256),
    )
}
"""`1.3b` is the paper's network (Section 4.1): GPT-NeoX's 50,277 tokens padded to 50,432 rows.

`mini-deep` and `mini-wide` cost about as many multiplications a token as `mini`.
"""


def find_preset(name: str) -> Preset:
    """The preset of that name."""
    if name not in PRESETS:
        hint = did_you_mean(name, PRESETS, most=1)
        raise SiloError("recipe-value", f"there is no preset '{name}': choose one of {', '.join(PRESETS)}", hint)
    return PRESETS[name]
