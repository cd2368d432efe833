"""What the config.json beside a checkpoint says of its architecture, as far as pairs of matrices depend on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import RequestError

HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads", "n_kv_heads")
# Where models of text and something else keep what is said of the text.
NESTED = ("text_config", "llm_config", "language_config", "attn_config")
FLAGS = (
    "use_parallel_residual",
    "parallel_attn",
    "new_decoder_architecture",
    "multi_query",
    "tie_word_embeddings",
    "weight_tying",
)


@dataclass(frozen=True)
class Facts:
    """`model_types`: that of the whole, then that of its text part; `heads`: of attention, None where not known.

    `kv_heads`: of keys and values, None where not known; `classes`: the model's, such as GPT2LMHeadModel; `flags`:
    those of `FLAGS` that are there.
    """

    model_types: tuple[str, ...] = ()
    heads: int | None = None
    kv_heads: int | None = None
    classes: tuple[str, ...] = ()
    flags: dict[str, bool] = field(default_factory=dict)

    def flag(self, name: str, default: bool) -> bool:
        """A switch of the architecture, or what its family does where nothing is said."""
        return self.flags.get(name, default)

    @property
    def predicts_tokens(self) -> bool:
        """Whether the class of the model has an unembedding, which may be tied and absent from the file."""
        words = ("LMHead", "CausalLM", "MaskedLM", "ConditionalGeneration", "ForPreTraining")
        return any(word in name for name in self.classes for word in words)

    def as_plain(self) -> dict[str, Any]:
        """For the store."""
        return asdict(self)


def from_plain(plain: Mapping[str, Any]) -> Facts:
    """What `as_plain` gave, from JSON."""
    known = {name: plain[name] for name in ("heads", "kv_heads", "flags") if name in plain}
    return Facts(tuple(plain.get("model_types", ())), classes=tuple(plain.get("classes", ())), **known)


def read_facts(config: Mapping[str, Any] | None, heads: int | None = None, kv_heads: int | None = None) -> Facts:
    """The facts of a config.json (None where there is none), and what the user says of the heads.

    Raises RequestError where the two contradict each other.
    """
    config = config or {}
    nested = [config[name] for name in NESTED if isinstance(config.get(name), Mapping)]
    places = [config, *nested]
    names = [place.get("model_type") for place in places]
    classes = config.get("architectures")
    return Facts(
        model_types=tuple(name for name in names if isinstance(name, str)),
        heads=_agreed("--heads", heads, places, HEADS),
        kv_heads=_agreed("--kv-heads", kv_heads, places, KV_HEADS),
        classes=tuple(name for name in classes if isinstance(name, str)) if isinstance(classes, list) else (),
        flags={name: place[name] for name in FLAGS for place in places[::-1] if isinstance(place.get(name), bool)},
    )


def _agreed(option: str, given: int | None, places: list[Mapping[str, Any]], keys: tuple[str, ...]) -> int | None:
    for key, value in ((key, place.get(key)) for place in places for key in keys):
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            if given not in (None, value):
                raise RequestError(f"{option} {given} contradicts config.json, whose {key} is {value}")
            return value
    return given
