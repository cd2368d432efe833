"""The pairs of a Transformer (SPEC section 3): what writes to the residual stream, and what reads it next."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import pairwise

from ..tensors import natural_key
from .blocks import Attention, Names, Perceptron, output_of, parts_of
from .facts import Facts
from .layers import Layer, Layers, without_number
from .layouts import NO_HEADS, Parts
from .pairs import Blocks, Pair, Side, Vectors, make_pair

# The towers of models that see or hear as well: what config.json says of heads is said of the text.
BESIDE_TEXT = re.compile(r"(?:^|\.)(?:vision|visual|image|audio|speech)\w*\.")
NO_HEADS_BESIDE_TEXT = "the number of heads of this part is not read from config.json, which tells that of the text"


@dataclass(frozen=True)
class _End:
    """A matrix that writes to the residual stream, or reads from it, and which vectors of it are on that side."""

    kind: str
    layer: Layer
    vectors: Vectors

    @property
    def side(self) -> tuple[Side, Layer]:
        return Side(self.layer.name, self.vectors), self.layer


@dataclass
class _Stage:
    """What reads the residual stream at one place and writes to it next, and the pairs inside."""

    readers: list[_End] = field(default_factory=list)
    writers: list[_End] = field(default_factory=list)
    inside: list[Pair] = field(default_factory=list)
    reads_encoder: list[_End] = field(default_factory=list)

    def together_with(self, other: _Stage) -> _Stage:
        return _Stage(
            self.readers + other.readers,
            self.writers + other.writers,
            self.inside + other.inside,
            self.reads_encoder + other.reads_encoder,
        )


class ResidualStream:
    """The pairs of one model."""

    def __init__(self, family: Names, layers: Layers, facts: Facts) -> None:
        self.family = family
        self.layers = layers
        self.facts = facts
        self.is_parallel = family.parallel(facts)
        self.is_beside_text = False
        self._blocks: dict[str, list[_Stage]] = {}

    def pairs(self) -> list[Pair]:
        """In the order of the blocks; those of towers beside the text last."""
        stacks = self._stacks()
        of_text = {key: heads for key, heads in stacks.items() if not BESIDE_TEXT.search(key)}
        if of_text and len(of_text) < len(stacks):
            rest = {key: heads for key, heads in stacks.items() if key not in of_text}
            beside = ResidualStream(self.family, self.layers, replace(self.facts, heads=None, kv_heads=None))
            beside.is_beside_text = True
            return self._of_stacks(of_text) + beside._of_stacks(rest)
        return self._of_stacks(stacks)

    def _of_stacks(self, stacks: dict[str, list[str]]) -> list[Pair]:
        blocks = {key: [self._block(head) for head in heads] for key, heads in stacks.items()}
        decoders = [key for key, stack in blocks.items() if any(s.reads_encoder for stages in stack for s in stages)]
        encoder = next((key for key in blocks if key not in decoders), None) if decoders else None
        found: list[Pair] = []
        for key, stack in blocks.items():
            is_last = key == (decoders or list(blocks))[-1]
            memory = blocks[encoder][-1][-1].writers if encoder is not None and key in decoders else []
            found += self._of_stack(key, stack, memory, is_last)
        return list(dict.fromkeys(found))

    def _stacks(self) -> dict[str, list[str]]:
        """What stands before the names of each block, by stack, those with an encoder's first."""
        stacks: dict[str, list[str]] = {}
        for head in sorted(self.heads(), key=lambda head: ("decoder" in head, natural_key(head))):
            if any(stage.writers or stage.readers for stage in self._block(head)):
                stacks.setdefault(without_number(head)[0], []).append(head)
        return stacks

    def heads(self) -> list[str]:
        """What stands before the names of each block."""
        heads: dict[str, None] = {}
        for attention in self.family.attentions:
            for tail in (attention.fused, attention.query):
                heads |= dict.fromkeys(self.layers.heads_of(tail) if tail else [])
        for sublayer in self.family.sublayers:
            for member in sublayer:
                if isinstance(member, Perceptron) and "*" not in member.down:
                    # A name such as BERT's `output.dense` ends others as well: the MLP is where W_1 is beside it.
                    ups = [name for name in (*member.up, *member.otherwise) if "*" not in name]
                    found = self.layers.heads_of(member.down)
                    heads |= dict.fromkeys(head for head in found if any(self.layers.get(head + up) for up in ups))
        return list(heads)

    def _of_stack(self, key: str, blocks: list[list[_Stage]], memory: list[_End], is_last: bool) -> list[Pair]:
        head = key.partition("*")[0]
        stages = [stage for block in blocks for stage in block]
        names = () if self.is_beside_text else self.family.embeddings
        embeddings = next((found for name in names if (found := self.layers.nearest_of(name, head))), [])
        embedding = embeddings[0] if embeddings else None
        pairs = self._embedding_pairs(embedding, head, stages[0]) if embedding else []
        if len(embeddings) > 1:  # names do not tell which
            pairs = [replace(pair, guessed=True) for pair in pairs]
        for index, stage in enumerate(stages):
            pairs += self._between(memory, stage.reads_encoder, "encoder")
            pairs += stage.inside
            if index + 1 < len(stages):
                pairs += self._between(stage.writers, stages[index + 1].readers)
        if is_last and not self.is_beside_text:
            # In parallel blocks as in others it is W_2 that is paired with what comes last.
            last = [end for end in stages[-1].writers if end.kind == "mlp"] or stages[-1].writers
            pairs += self._last_pairs(last, head, embedding)
        return pairs

    def _embedding_pairs(self, embedding: Layer, head: str, first: _Stage) -> list[Pair]:
        """The embedding to the first block's attention input."""
        end: _End = _End("embedding", embedding, "left" if embedding.kernel else "right")
        pairs: list[Pair] = []
        between = self.layers.nearest(self.family.projection_in, head) if self.family.projection_in else None
        if between is not None:
            pairs = [make_pair("embedding", end.side, _End("", between, "right").side)]
            end = _End("embedding", between, "left")
        readers = [reader for reader in first.readers if reader.kind == "attention"]
        return pairs + self._between([end], readers or first.readers)

    def _last_pairs(self, writers: list[_End], head: str, embedding: Layer | None) -> list[Pair]:
        """The last W_2 to the unembedding, and to whatever else reads the last block."""
        family, layers = self.family, self.layers
        chain = [found for name in family.before_unembedding if (found := layers.nearest(name, head))]
        last = next((found for name in family.unembedding if (found := layers.nearest(name, head))), None)
        if last is None and (chain or self.facts.predicts_tokens) and self._is_tied():
            last = embedding
        chains = [chain + ([last] if last else [])]
        chains += [[found for name in names if (found := layers.nearest(name, head))] for names in family.outputs]
        pairs = []
        for kind, one in zip(["unembedding", *["output"] * len(family.outputs)], chains, strict=True):
            if one:
                pairs += self._between(writers, [_End(kind, one[0], "right")])
            for first, second in pairwise(one):
                pairs.append(make_pair(kind, _End("", first, "left").side, _End("", second, "right").side))
        return pairs

    def _is_tied(self) -> bool:
        types, tied = {*self.facts.model_types}, self.family.tied
        default = not types.isdisjoint(tied) if types else bool(tied)
        return self.facts.flag("tie_word_embeddings", self.facts.flag("weight_tying", default))

    def _between(self, writers: list[_End], readers: list[_End], kind: str | None = None) -> list[Pair]:
        return [
            make_pair(f"{kind or writer.kind}_{reader.kind}", writer.side, reader.side)
            for writer in writers
            for reader in readers
        ]

    def _block(self, head: str) -> list[_Stage]:
        """The stages of a block: its sublayers one after the other, or all in one where they are parallel."""
        if head not in self._blocks:
            self._blocks[head] = self._stages(head)
        return self._blocks[head]

    def _stages(self, head: str) -> list[_Stage]:
        stages = []
        for sublayer in self.family.sublayers:
            stage = _Stage()
            for member in sublayer:
                made = self._attention(member, head) if isinstance(member, Attention) else self._mlp(member, head)
                stage = stage.together_with(made)
            if stage.readers or stage.writers:
                stages.append(stage)
        if self.is_parallel and stages:
            merged = _Stage()
            for stage in stages:
                merged = merged.together_with(stage)
            return [merged]
        return stages

    def _mlp(self, names: Perceptron, head: str) -> _Stage:
        downs = self.layers.under(head, names.down)
        ups = [self.layers.under(head, name) for name in names.up]
        if not any(ups):
            ups = [self.layers.under(head, name) for name in names.otherwise]
        inside = [
            make_pair("mlp", _End("", layer, "left").side, _End("", downs[expert], "right").side)
            for expert in downs
            for up in ups
            if (layer := up.get(expert)) is not None
        ]
        readers = [_End("mlp", layer, "right") for up in ups for layer in up.values()]
        return _Stage(readers, [_End("mlp", layer, "left") for layer in downs.values()], inside)

    def _attention(self, names: Attention, head: str) -> _Stage:
        output = output_of(names, head, self.layers)
        writers = [_End("o", output, "left")] if output else []
        fused = self.layers.get(head + names.fused) if names.fused else None
        if fused is not None:
            parts = parts_of(names, head, fused, self.layers, self.facts)
            whole = [_End("attention", fused, "right")]
            if isinstance(parts, str):
                return _Stage(whole, writers, _unknown(fused.name, output, parts))
            of_parts = [self._part(fused, parts, part) for part in "qkv"]
            inside = self._of_heads(of_parts[0], of_parts[1], of_parts[2], output)
            if names.reads_encoder:
                ends = [_End("attention", layer, "right") for layer in of_parts]
                return _Stage(ends[:1], writers, inside, ends[1:])
            return _Stage(whole, writers, inside)
        q, k, v = (self.layers.get(head + name) if name else None for name in (names.query, names.key, names.value))
        ends = [_End("attention", layer, "right") for layer in (q, k, v) if layer]
        inside = self._of_heads(q, k, v, output)
        if names.reads_encoder:
            return _Stage(ends[:1], writers, inside, ends[1:])
        return _Stage(ends, writers, inside)

    def _part(self, fused: Layer, parts: Parts, part: str) -> Layer:
        """A part as the store has it; one that was left out is described all the same, and found to be absent."""
        name = f"{fused.name}[{part}]"
        return self.layers.get(name) or Layer(name, (parts[part].count, fused.shape[1]), fused.role)

    def _of_heads(self, q: Layer | None, k: Layer | None, v: Layer | None, o: Layer | None) -> list[Pair]:
        """W_Q with W_K, output side with output side, and W_V to W_O, head by head; W_V to W_O as a whole."""
        pairs = []
        heads, groups, reason = self._heads(q, k, v, o)
        if q and k:
            sides = (
                (Side(q.name, "left", blocks=Blocks(0, heads)), q),
                (Side(k.name, "left", blocks=Blocks(0, groups)), k),
            )
            pairs.append(_pair_or_reason("q_k", *sides, reason))
        if v and o:
            sides = (
                (Side(v.name, "left", blocks=Blocks(0, groups)), v),
                (Side(o.name, "right", blocks=Blocks(1, heads)), o),
            )
            pairs.append(_pair_or_reason("v_o", *sides, reason))
            if v.shape[0] == o.shape[1]:
                pairs.append(make_pair("v_o_whole", (Side(v.name, "left"), v), (Side(o.name, "right"), o)))
        return pairs

    def _heads(self, q: Layer | None, k: Layer | None, v: Layer | None, o: Layer | None) -> tuple[int, int, str | None]:
        """How many heads queries have, and keys and values, and why that is not known.

        Keys and values that are shorter are those of groups of heads: their number follows from the size of a head.
        """
        heads = self.facts.heads
        if heads is None:
            return 1, 1, NO_HEADS_BESIDE_TEXT if self.is_beside_text else NO_HEADS
        width = q.shape[0] if q else o.shape[1] if o else 0
        keys = k.shape[0] if k else v.shape[0] if v else width
        if width % heads:
            return heads, heads, f"{heads} heads do not divide the {width} rows of the queries"
        size = width // heads
        groups = keys // size if size else 0
        if not groups or keys % size or heads % groups:
            return heads, heads, f"the {keys} rows of the keys are not those of groups of {heads} heads of {size}"
        is_fused = k is not None and k.name.endswith("]")  # whose layout has asked for the number
        if self.facts.kv_heads not in (None, groups) and not is_fused:
            reason = (
                f"{self.facts.kv_heads} heads of keys and values do not make {keys} rows: heads of {size} are {groups}"
            )
            return heads, groups, reason
        return heads, groups, None


def _unknown(fused: str, output: Layer | None, reason: str) -> list[Pair]:
    """The pairs of a fused matrix whose layout is not known, listed with the reason."""
    rows, columns = Blocks(0, 1), Blocks(1, 1)
    pairs = [
        Pair("q_k", Side(f"{fused}[q]", "left", blocks=rows), Side(f"{fused}[k]", "left", blocks=rows), reason=reason)
    ]
    if output is not None:
        value = f"{fused}[v]"
        per_head = Side(value, "left", blocks=rows), Side(output.name, "right", blocks=columns)
        pairs.append(Pair("v_o", *per_head, reason=reason))
        pairs.append(Pair("v_o_whole", Side(value, "left"), Side(output.name, "right"), reason=reason))
    return pairs


def _pair_or_reason(kind: str, one: tuple[Side, Layer], other: tuple[Side, Layer], reason: str | None) -> Pair:
    return Pair(kind, one[0], other[0], reason=reason) if reason else make_pair(kind, one, other)
