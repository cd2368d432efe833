"""All families, and which of them a model is of."""

from __future__ import annotations

from . import (
    bert,
    consecutive,
    falcon,
    gpt2,
    gpt_bigcode,
    gpt_neox,
    gptj,
    llama,
    mlp,
    mpt,
    olmo,
    opt,
    plain_transformer,
    recurrent,
    resnet,
    t5,
    torch_transformer,
    unet,
    vgg,
    vit,
)
from .facts import Facts
from .family import Family, Guess
from .layers import Layers

# Tried in this order where config.json does not tell: names that say more come first.
FAMILIES: tuple[Family, ...] = (
    gpt_neox.FAMILY,
    falcon.FAMILY,
    gpt_neox.BLOOM,
    gpt2.FAMILY,
    gpt_bigcode.FAMILY,
    llama.FAMILY,
    llama.COHERE,
    llama.LLAMA4,
    llama.GPT_OSS,
    gptj.FAMILY,
    gptj.PHI,
    opt.FAMILY,
    bert.FAMILY,
    vit.FAMILY,
    mpt.FAMILY,
    t5.FAMILY,
    olmo.FAMILY,
    torch_transformer.FAMILY,
    plain_transformer.FAMILY,
    plain_transformer.ATTENTION,
    recurrent.FAMILY,
    unet.FAMILY,
    resnet.FAMILY,
    vgg.FAMILY,
    mlp.FAMILY,
    consecutive.FAMILY,
)
_BY_NAME = {family.name: family for family in FAMILIES}
_BY_MODEL_TYPE = {model_type: family for family in FAMILIES for model_type in family.model_types}


def recognise(layers: Layers, facts: Facts) -> Family:
    """The family of a model: by the `model_type` of its config.json, else by names.

    Where config.json names another type, names are evidence and no proof: all pairs are guesses.
    """
    for model_type in facts.model_types:
        if model_type in _BY_MODEL_TYPE and _BY_MODEL_TYPE[model_type].has_names(layers):
            return _BY_MODEL_TYPE[model_type]
    return _unless_contradicted(next(family for family in FAMILIES if family.fits(layers)), facts)


def by_name(name: str | None, layers: Layers, facts: Facts) -> Family:
    """The family of this name; recognised anew where there is none of it."""
    family = _BY_NAME.get(name or "")
    return recognise(layers, facts) if family is None else _unless_contradicted(family, facts)


def _unless_contradicted(family: Family, facts: Facts) -> Family:
    is_of_this_type = not facts.model_types or any(_BY_MODEL_TYPE.get(one) is family for one in facts.model_types)
    return family if is_of_this_type else Guess(family)
