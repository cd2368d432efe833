"""Families of plain torch modules: every pair that SPEC section 3 names, none guessed, in either order of names."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn


def sequential(*sizes: int) -> nn.Sequential:
    members: list[nn.Module] = []
    for width, after in pairwise(sizes):
        members += [nn.Linear(width, after), nn.ReLU()]
    return nn.Sequential(*members[:-1])


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(16 * 5 * 5, 12), nn.Linear(12, 8), nn.Linear(8, 5)


class VGG(nn.Module):
    """torchvision's names; batch norm between."""

    def __init__(self, spatial: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU()),
        )
        self.classifier = nn.Sequential(nn.Linear(6 * spatial**2, 10), nn.ReLU(), nn.Dropout(), nn.Linear(10, 5))


class Block(nn.Module):
    """torchvision's BasicBlock or Bottleneck, as far as names and shapes go."""

    def __init__(self, before: int, width: int, bottleneck: bool) -> None:
        super().__init__()
        after = 2 * width if bottleneck else width
        self.conv1 = nn.Conv2d(before, width, 1 if bottleneck else 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, bias=False)
        if bottleneck:
            self.conv3 = nn.Conv2d(width, after, 1, bias=False)
        if before != after:
            self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, bias=False), nn.BatchNorm2d(after))


class ResNet(nn.Module):
    def __init__(self, bottleneck: bool) -> None:
        super().__init__()
        times = 2 if bottleneck else 1
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 7, bias=False), nn.BatchNorm2d(4)
        self.layer1 = nn.Sequential(Block(4, 4, bottleneck), Block(4 * times, 4, bottleneck))
        self.layer2 = nn.Sequential(Block(4 * times, 6, bottleneck))
        self.fc = nn.Linear(6 * times, 5)


class Tagger(nn.Module):
    def __init__(self, kind: Any, layers: int, both: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.rnn = kind(6, 5, num_layers=layers, bidirectional=both)
        self.out = nn.Linear(10 if both else 5, 4)


class LanguageModel(nn.Module):
    """As in PyTorch's tutorial: the embedding is called encoder, the output decoder."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 12)
        self.encoder = nn.Embedding(11, 8)
        self.transformer_encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.decoder = nn.Linear(8, 11)


def chain(*names: str) -> set[str]:
    return {f"{one}->{other}" for one, other in pairwise(names)}


def product(writers: list[str], readers: list[str]) -> set[str]:
    return {f"{one}->{other}" for one in writers for other in readers}


def resnet(bottleneck: bool) -> set[str]:
    blocks = {"layer1.0": bottleneck, "layer1.1": False, "layer2.0": True}  # with a shortcut or without
    writers, found = ["conv1"], set()
    for block, has_shortcut in blocks.items():
        convolutions = [f"{block}.conv{i}" for i in range(1, 4 if bottleneck else 3)]
        shortcut = [f"{block}.downsample.0"] if has_shortcut else []
        found |= product(writers, [convolutions[0], *shortcut]) | chain(*convolutions)
        writers = [convolutions[-1], *shortcut]
    return found | product(writers, ["fc"])


def recurrent(layers: int, both: bool) -> set[str]:
    found = set()
    for end, word in (("", "forward"), ("_reverse", "reverse"))[: 2 if both else 1]:
        found |= {f"embedding->rnn.weight_ih_l0{end}"}
        for layer in range(layers):
            ih, hh = f"rnn.weight_ih_l{layer}{end}", f"rnn.weight_hh_l{layer}{end}"
            reader = f"rnn.weight_ih_l{layer + 1}{end}" if layer + 1 < layers else "out"
            found |= {f"{ih}->{hh}"} | product([ih, hh], [f"{reader}[{word}]" if both else reader])
    return found


def encoder_layers(layers: int) -> set[str]:
    found, before = set(), "encoder"
    for i in range(layers):
        path = f"transformer_encoder.layers.{i}"
        fused, output = f"{path}.self_attn.in_proj_weight", f"{path}.self_attn.out_proj"
        found |= {f"{before}->{fused}", f"{fused}[q,head]->{fused}[k,head]", f"{fused}[v,head]->{output}[head]"}
        found |= {f"{fused}[v]->{output}"} | chain(output, f"{path}.linear1", f"{path}.linear2")
        before = f"{path}.linear2"
    return found | {f"{before}->decoder"}


def unet() -> nn.Module:
    model = nn.Module()
    widths = [1, 4, 4, 6, 6]
    for i in range(1, 5):
        setattr(model, f"conv{i}", nn.Conv2d(widths[i - 1], widths[i], 3, bias=False))
        setattr(model, f"tconv{i}", nn.ConvTranspose2d(widths[i], widths[i - 1], 3, bias=i == 1))
    for i in range(1, 8):
        dense = nn.Module()
        dense.dense = nn.Linear(8, widths[i if i < 5 else 8 - i])
        setattr(model, f"dense{i}", dense)
    return model


def unet_pairs() -> set[str]:
    """The 17 of the thesis."""
    found = chain("conv1", "conv2", "conv3", "conv4", "tconv4", "tconv3", "tconv2", "tconv1")
    found |= {f"conv{i}->tconv{i}" for i in (1, 2, 3)} | {f"dense{i}.dense->tconv{i}" for i in (1, 2, 3, 4)}
    found |= {f"dense{i}.dense->conv{i + 1}" for i in (1, 2, 3)}
    assert len(found) == 17
    return found


MODELS: dict[str, tuple[Any, set[str]]] = {
    "sequential": (lambda: sequential(7, 8, 6, 5), chain("0", "2", "4")),
    "deep_sequential": (lambda: sequential(*[6] * 14), chain(*(str(i) for i in range(0, 26, 2)))),
    "lenet": (LeNet, chain("conv1", "conv2", "fc1", "fc2", "fc3")),
    "vgg": (lambda: VGG(7), chain("features.0", "features.4", "classifier.0", "classifier.3")),
    "vgg_pooled": (lambda: VGG(1), chain("features.0", "features.4", "classifier.0", "classifier.3")),
    "resnet": (lambda: ResNet(False), resnet(False)),
    "resnet_bottleneck": (lambda: ResNet(True), resnet(True)),
    "unet": (unet, unet_pairs()),
    "lstm": (lambda: Tagger(nn.LSTM, 1, False), recurrent(1, False)),
    "lstm_deep": (lambda: Tagger(nn.LSTM, 11, False), recurrent(11, False)),
    "lstm_both_ways": (lambda: Tagger(nn.LSTM, 3, True), recurrent(3, True)),
    "gru": (lambda: Tagger(nn.GRU, 2, False), recurrent(2, False)),
    "gru_both_ways": (lambda: Tagger(nn.GRU, 2, True), recurrent(2, True)),
    "transformer_encoder": (LanguageModel, encoder_layers(2)),
}


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
@pytest.mark.parametrize("name", MODELS)
def test_every_pair_is_there_and_none_guessed(name: str, suffix: str, cli: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, expected = MODELS[name]
    path = tmp_path / f"model.{suffix}"
    state = make().state_dict()
    save_file(state, path) if suffix == "safetensors" else torch.save(state, path)
    heads = ["--heads", "2"] if "transformer" in name else []
    rows = cli("show", path, "--pairs", "--format", "json", *heads).json["rows"]
    assert {"->".join(map(without_weight, row["pair"].split("->"))) for row in rows} == expected
    assert not any(row["guessed"] or row["reason"] for row in rows)


def test_the_format_of_olmo(cli: Any, tmp_path: Path) -> None:
    """Its own, not Hugging Face's: q, k and v in att_proj, and gate and up in ff_proj, the gate last."""
    shapes = {"att_proj": (24, 8), "attn_out": (8, 8), "ff_proj": (20, 8), "ff_out": (8, 10)}
    weights = {f"model.transformer.blocks.{i}.{name}.weight": shape for i in (0, 1) for name, shape in shapes.items()}
    weights |= {"model.transformer.wte.weight": (30, 8), "model.transformer.ff_out.weight": (30, 8)}
    save_file({name: torch.randn(*shape) for name, shape in weights.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "hf_olmo", "n_heads": 2, "weight_tying": false}')
    rows = cli("show", tmp_path, "--pairs", "--format", "json").json["rows"]
    found = {row["pair"].replace("model.transformer.", "").replace(".weight", "") for row in rows}
    expected = {"wte->blocks.0.att_proj", "blocks.0.ff_out->blocks.1.att_proj", "blocks.1.ff_out->ff_out"}
    for i in (0, 1):
        block = f"blocks.{i}"
        expected |= {f"{block}.att_proj[q,head]->{block}.att_proj[k,head]", f"{block}.att_proj[v]->{block}.attn_out"}
        expected |= {f"{block}.att_proj[v,head]->{block}.attn_out[head]"}
        for part in ("gate", "up"):
            expected |= {f"{block}.attn_out->{block}.ff_proj[{part}]", f"{block}.ff_proj[{part}]->{block}.ff_out"}
    assert found == expected
    assert not any(row["guessed"] or row["reason"] for row in rows)


@pytest.mark.parametrize(
    ("names", "embedding"),
    [
        (("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2", "head"), "patch_embed.proj"),
        (("self_attention.in_proj_weight", "self_attention.out_proj", "mlp.0", "mlp.3", "heads.head"), "conv_proj"),
    ],
    ids=["timm", "torchvision"],
)
def test_vision_transformers_of_other_libraries(names: Any, embedding: str, cli: Any, tmp_path: Path) -> None:
    fused, output, up, down, head = names
    blocks = ["blocks.0", "blocks.1"] if "qkv" in fused else [f"encoder.layers.encoder_layer_{i}" for i in (0, 1)]
    shapes = {fused: (24, 8), output: (8, 8), up: (16, 8), down: (8, 16)}
    weights = {
        f"{block}.{name}{'' if name.endswith('weight') else '.weight'}": torch.randn(*shape)
        for block in blocks
        for name, shape in shapes.items()
    }
    weights |= {f"{embedding}.weight": torch.randn(8, 3, 4, 4), f"{head}.weight": torch.randn(5, 8)}
    weights[f"{embedding}.bias"] = torch.zeros(8)
    save_file(weights, tmp_path / "model.safetensors")
    rows = cli("show", tmp_path, "--pairs", "--heads", "2", "--format", "json").json["rows"]
    found = {row["pair"].replace(".weight", "") for row in rows}
    assert {f"{embedding}->{blocks[0]}.{fused}".replace(".weight", ""), f"{blocks[1]}.{down}->{head}"} <= found
    assert len(found) == 2 + 2 * 5 + 1
    assert not any(row["guessed"] or row["reason"] for row in rows)


def test_what_no_family_knows_is_a_guess(cli: Any, tmp_path: Path) -> None:
    weights = {"first_thing": (6, 4), "second_thing": (8, 6), "other": (3, 3), "last_thing": (2, 3)}
    torch.save({f"{name}.weight": torch.randn(*shape) for name, shape in weights.items()}, tmp_path / "model.pt")
    found = cli("show", tmp_path / "model.pt", "--pairs", "--format", "json").json
    assert found["families"] == ["unknown"]
    assert [(row["pair"], row["guessed"]) for row in found["rows"]] == [
        ("first_thing.weight->second_thing.weight", True),
        ("other.weight->last_thing.weight", True),
    ]


def test_an_encoder_and_a_decoder_of_torch(cli: Any, tmp_path: Path) -> None:
    """Queries of the second attention read the decoder; its keys and values read the last block of the encoder."""
    torch.manual_seed(0)
    model = nn.Transformer(8, 2, 2, 2, 12, batch_first=True)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    rows = cli("show", tmp_path / "model.pt", "--pairs", "--heads", "2", "--format", "json").json["rows"]
    found = {row["pair"].replace(".weight", "") for row in rows}
    for i in (0, 1):
        path = f"decoder.layers.{i}"
        fused = f"{path}.multihead_attn.in_proj_weight"
        name = fused.replace(".weight", "")
        assert f"{path}.self_attn.out_proj->{name}[q]" in found
        assert {f"encoder.layers.1.linear2->{name}[{part}]" for part in "kv"} <= found
        assert f"{path}.multihead_attn.out_proj->{path}.linear1" in found
        assert f"{path}.self_attn.out_proj->{name}" not in found
    assert not any(row["guessed"] or row["reason"] for row in rows)


def test_an_autoencoder_is_no_unet(cli: Any, tmp_path: Path) -> None:
    """The same names, with the way up in ascending order: its sizes contradict skips."""
    model = nn.Sequential()
    for name, conv in (
        ("conv1", nn.Conv2d(1, 4, 3)),
        ("conv2", nn.Conv2d(4, 6, 3)),
        ("tconv1", nn.ConvTranspose2d(6, 4, 3)),
        ("tconv2", nn.ConvTranspose2d(4, 1, 3)),
    ):
        model.add_module(name, conv)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    rows = cli("show", tmp_path / "model.pt", "--pairs", "--format", "json").json["rows"]
    assert {row["pair"].replace(".weight", "") for row in rows} == chain("conv1", "conv2", "tconv1", "tconv2")


def test_a_recurrent_layer_is_not_read_past_another(cli: Any, tmp_path: Path) -> None:
    model = nn.ModuleDict({"encoder": nn.LSTM(6, 5), "decoder": nn.LSTM(6, 5), "fc": nn.Linear(5, 3)})
    torch.save(model.state_dict(), tmp_path / "model.pt")
    rows = cli("show", tmp_path / "model.pt", "--pairs", "--format", "json").json["rows"]
    assert {row["pair"] for row in rows if row["to"] == "fc.weight"} == {
        "decoder.weight_ih_l0->fc.weight",
        "decoder.weight_hh_l0->fc.weight",
    }


def shown(cli: Any, path: Path, *options: str) -> dict[str, Any]:
    """The rows of `show --pairs` by the pair's name without `.weight`."""
    rows = cli("show", path, "--pairs", "--format", "json", *options).json["rows"]
    return {"->".join(map(without_weight, row["pair"].split("->"))): row for row in rows}


def without_weight(name: str) -> str:
    return name.replace(".weight[", "[").removesuffix(".weight")


def test_an_lstm_with_a_projection(cli: Any, tmp_path: Path) -> None:
    model = nn.ModuleDict({"rnn": nn.LSTM(6, 8, num_layers=2, proj_size=5), "fc": nn.Linear(5, 3)})
    torch.save(model.state_dict(), tmp_path / "model.pt")
    rows = shown(cli, tmp_path / "model.pt")
    expected = set()
    for layer, reader in ((0, "rnn.weight_ih_l1"), (1, "fc")):
        hr = f"rnn.weight_hr_l{layer}"
        expected |= product([f"rnn.weight_ih_l{layer}", f"rnn.weight_hh_l{layer}"], [hr])
        expected |= product([hr], [f"rnn.weight_hh_l{layer}", reader])
    assert set(rows) == expected
    assert not any(row["guessed"] or row["reason"] for row in rows.values())
    assert rows["rnn.weight_ih_l0->rnn.weight_hr_l0"]["from_rows"] == "16:24"


def test_a_plain_rnn_has_no_gates(cli: Any, tmp_path: Path) -> None:
    model = nn.ModuleDict({"rnn": nn.RNN(6, 5), "fc": nn.Linear(5, 3)})
    torch.save(model.state_dict(), tmp_path / "model.pt")
    rows = shown(cli, tmp_path / "model.pt")
    assert set(rows) == {"rnn.weight_ih_l0->rnn.weight_hh_l0"} | product(
        ["rnn.weight_ih_l0", "rnn.weight_hh_l0"], ["fc"]
    )
    assert all(row["from_rows"] is None and not row["reason"] for row in rows.values())


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_recurrent_modules_one_after_the_other(suffix: str, cli: Any, tmp_path: Path) -> None:
    model = nn.ModuleDict({"lstm1": nn.LSTM(8, 8), "lstm2": nn.LSTM(8, 8), "fc": nn.Linear(8, 8)})
    path = tmp_path / f"model.{suffix}"
    save_file(model.state_dict(), path) if suffix == "safetensors" else torch.save(model.state_dict(), path)
    rows = shown(cli, path)
    writers = ["lstm1.weight_ih_l0", "lstm1.weight_hh_l0"]
    between = product(writers, ["lstm2.weight_ih_l0"])
    assert {name for name in rows if name.startswith("lstm1") and "->lstm1" not in name} == between
    assert all(rows[name]["guessed"] for name in between)
    assert set(rows) >= product(["lstm2.weight_ih_l0", "lstm2.weight_hh_l0"], ["fc"])


BRANCHES = {
    "actor_critic": {"actor.0": (16, 4), "actor.2": (4, 16), "critic.0": (16, 4), "critic.2": (1, 16)},
    "sides": {"fc_left": (6, 6), "fc_right": (6, 6), "fc_out": (6, 6)},
    "vae": {"fc1": (8, 20), "fc21": (8, 8), "fc22": (8, 8), "fc3": (8, 8), "fc4": (20, 8)},
    "shortcut": {"blocks.0.fc1": (6, 6), "blocks.0.fc2": (6, 6), "blocks.0.shortcut.0": (6, 6)},
    "skip": {"conv_a": (4, 3, 3, 3), "conv_b": (4, 4, 3, 3), "conv_skip": (4, 4, 1, 1), "fc": (2, 4)},
}


@pytest.mark.parametrize("name", BRANCHES)
def test_branches_are_no_line(name: str, cli: Any, tmp_path: Path) -> None:
    torch.save({f"{key}.weight": torch.randn(*s) for key, s in BRANCHES[name].items()}, tmp_path / "model.pt")
    rows = shown(cli, tmp_path / "model.pt")
    assert rows
    assert all(row["guessed"] for row in rows.values())


def test_one_matrix_of_every_block_is_no_line(cli: Any, tmp_path: Path) -> None:
    """As an adapter has them: they follow each other in the model with others between."""
    torch.save({f"layers.{i}.self_attn.q_proj.weight": torch.randn(8, 8) for i in range(3)}, tmp_path / "model.pt")
    rows = shown(cli, tmp_path / "model.pt")
    assert set(rows) == chain(*(f"layers.{i}.self_attn.q_proj" for i in range(3)))
    assert all(row["guessed"] for row in rows.values())


def test_two_networks_in_one_file(cli: Any, tmp_path: Path) -> None:
    model = nn.ModuleDict({"student": ResNet(False), "teacher": ResNet(False)})
    torch.save(model.state_dict(), tmp_path / "model.pt")
    rows = shown(cli, tmp_path / "model.pt")
    assert set(rows) == {f"{path}.{pair.replace('->', f'->{path}.')}" for pair in resnet(False) for path in model}


def test_each_side_reads_its_own_embedding(cli: Any, tmp_path: Path) -> None:
    """As in PyTorch's tutorial on translation."""
    model = nn.ModuleDict(
        {
            "src_tok_emb": nn.ModuleDict({"embedding": nn.Embedding(11, 8)}),
            "tgt_tok_emb": nn.ModuleDict({"embedding": nn.Embedding(12, 8)}),
            "transformer": nn.Transformer(8, 2, 1, 1, 12, batch_first=True),
            "generator": nn.Linear(8, 12),
        }
    )
    torch.save(model.state_dict(), tmp_path / "model.pt")
    rows = shown(cli, tmp_path / "model.pt", "--heads", "2")
    for side, stack in (("src", "encoder"), ("tgt", "decoder")):
        assert f"{side}_tok_emb.embedding->transformer.{stack}.layers.0.self_attn.in_proj_weight" in rows
    assert sum("tok_emb" in name for name in rows) == 2
    assert not any(row["guessed"] for row in rows.values())


def test_a_second_attention_is_not_skipped_over(cli: Any, tmp_path: Path) -> None:
    names = ("q_proj", "k_proj", "v_proj", "out_proj")
    weights = {f"blocks.0.{path}.{name}": (8, 8) for path in ("self_attn", "cross_attn") for name in names}
    weights |= {"blocks.0.mlp.fc1": (12, 8), "blocks.0.mlp.fc2": (8, 12)}
    torch.save({f"{name}.weight": torch.randn(*shape) for name, shape in weights.items()}, tmp_path / "model.pt")
    rows = shown(cli, tmp_path / "model.pt", "--heads", "2")
    assert "blocks.0.self_attn.out_proj->blocks.0.cross_attn.q_proj" in rows
    assert "blocks.0.cross_attn.out_proj->blocks.0.mlp.fc1" in rows
    assert "blocks.0.self_attn.out_proj->blocks.0.mlp.fc1" not in rows
    assert "blocks.0.cross_attn.q_proj[head]->blocks.0.cross_attn.k_proj[head]" in rows


@pytest.mark.parametrize("path", ["attn.", "inner.mixer.", ""])
def test_attention_layers_of_torch_anywhere(path: str, cli: Any, tmp_path: Path) -> None:
    state = nn.MultiheadAttention(8, 2).state_dict()
    torch.save({f"{path}{name}": tensor for name, tensor in state.items()}, tmp_path / "model.pt")
    rows = shown(cli, tmp_path / "model.pt", "--heads", "2")
    fused = f"{path}in_proj_weight"
    assert set(rows) == {
        f"{fused}[q,head]->{fused}[k,head]",
        f"{fused}[v,head]->{path}out_proj[head]",
        f"{fused}[v]->{path}out_proj",
    }
    assert not any(row["guessed"] or row["reason"] for row in rows.values())


def test_a_type_whose_names_are_not_there(cli: Any, tmp_path: Path) -> None:
    save_file(sequential(7, 8, 6, 5).state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "vit", "num_attention_heads": 4}')
    rows = shown(cli, tmp_path)
    assert set(rows) == chain("0", "2", "4")
    assert all(row["guessed"] for row in rows.values())


@pytest.mark.parametrize(("heads", "said"), [(4, 1), (8, 2)])
def test_heads_of_keys_that_contradict_the_rows(heads: int, said: int, cli: Any, tmp_path: Path) -> None:
    names = {"q_proj": (16, 16), "k_proj": (8, 16), "v_proj": (8, 16), "o_proj": (16, 16)}
    weights = {f"layers.0.self_attn.{name}.weight": torch.randn(*shape) for name, shape in names.items()}
    weights |= {f"layers.0.mlp.{name}_proj.weight": torch.randn(16, 16) for name in ("gate", "up", "down")}
    torch.save(weights, tmp_path / "model.pt")
    options = ["--heads", str(heads), "--kv-heads", str(said)]
    rows = {row["kind"]: row for row in shown(cli, tmp_path / "model.pt", *options).values()}
    assert f"{said} heads of keys and values do not make 8 rows" in rows["q_k"]["reason"]
    assert rows["v_o"]["reason"]
