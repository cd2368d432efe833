"""Tensors become matrices or are skipped with a reason; none is dropped."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from spectrascope.arrays import from_torch, to_torch
from spectrascope.matrices import Matrix, Plan, model_order, plan
from spectrascope.roles import is_expert_stack
from spectrascope.selection import selected
from spectrascope.tensors import TensorInfo


def reader(tensors: dict[str, torch.Tensor]) -> Any:
    """What reads tensors, or what is at a place of their first axis."""
    arrays = {name: from_torch(tensor) for name, tensor in tensors.items()}
    return lambda name, index: arrays[name] if index is None else arrays[name][index]


def planned(tensors: dict[str, torch.Tensor], **options: Any) -> Plan:
    infos = {name: TensorInfo(name, tuple(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in tensors.items()}
    found = plan(
        infos,
        options.pop("tied", {}),
        reader(tensors),
        **options,
    )
    accounted = [m.name for m in found.matrices] + [s.name for s in found.skipped]
    assert sorted(accounted) == sorted(tensors), "a tensor was dropped, or counted twice"
    return found


def matrix_of(matrix: Matrix, tensor: torch.Tensor) -> torch.Tensor:
    """The matrix, cut from its tensor."""
    return to_torch(matrix.of(matrix.cut(reader({matrix.tensor: tensor}))))


def only(tensor: torch.Tensor, name: str = "l.weight", **others: torch.Tensor) -> Any:
    """What becomes of one tensor: (role, shape, guessed), or the reason why it is skipped."""
    found = planned({name: tensor} | {key.replace("__", "."): value for key, value in others.items()})
    for matrix in found.matrices:
        if matrix.name == name:
            assert matrix_of(matrix, tensor).shape == matrix.shape
            return matrix.role, matrix.shape, matrix.guessed
    return next(s.reason for s in found.skipped if s.name == name)


def test_matrices() -> None:
    assert only(torch.ones(3, 5)) == ("linear", (3, 5), False)
    assert only(torch.ones(3, 5), "lstm.weight_ih_l0") == ("recurrent", (3, 5), False)
    assert only(torch.ones(3, 5), "lstm.weight_hh_l1_reverse") == ("recurrent", (3, 5), False)
    assert only(torch.ones(3, 5), "model.embed_tokens.weight") == ("embedding", (3, 5), False)
    assert only(torch.ones(3, 5), "transformer.wpe.weight") == ("embedding", (3, 5), False)
    assert only(torch.ones(3, 5), "lm_head.weight") == ("unembedding", (3, 5), False)
    assert only(torch.ones(3, 5), "enc/l0/kernel") == ("linear", (3, 5), False)


@pytest.mark.parametrize("kernel", [(7,), (3, 3), (2, 2, 2)])
def test_convolutions_are_flattened(kernel: tuple[int, ...]) -> None:
    columns = 5 * torch.Size(kernel).numel()
    bias = torch.ones(4)
    assert only(torch.ones(4, 5, *kernel), l__bias=bias) == ("conv", (4, columns), False)
    assert only(torch.ones(4, 5, *kernel)) == ("conv", (4, columns), True)


def test_transposed_convolutions_swap_their_axes() -> None:
    columns = 5 * 9
    assert only(torch.ones(5, 4, 3, 3), l__bias=torch.ones(4)) == ("transposed conv", (4, columns), False)
    for name in ("tconv4.weight", "up.upconv1.weight", "convtranspose.weight", "dec.ConvTranspose2d_1.weight"):
        assert only(torch.ones(5, 4, 3, 3), name) == ("transposed conv", (4, columns), False)
    for name in ("outconv.weight", "conv_tail.weight", "first_conv.weight"):
        assert only(torch.ones(5, 4, 3, 3), name) == ("conv", (5, 36), True)
    # One that writes one channel is not depthwise.
    assert only(torch.ones(5, 1, 3, 3), "tconv1.weight", before__weight=torch.ones(5, 5, 3, 3))[0] == "transposed conv"
    assert only(torch.ones(5, 1, 3, 3), before__weight=torch.ones(5, 5, 3, 3), l__bias=torch.ones(1))[0] == (
        "transposed conv"
    )
    # A square one with a bias tells nothing.
    assert only(torch.ones(4, 4, 3, 3), l__bias=torch.ones(4)) == ("conv", (4, 36), True)
    tensor = torch.arange(5 * 4 * 9.0).reshape(5, 4, 3, 3)
    matrix = planned({"l.weight": tensor, "l.bias": torch.ones(4)}).matrices[0]
    assert torch.equal(matrix_of(matrix, tensor)[2], tensor[:, 2].reshape(-1))


@pytest.mark.parametrize(
    ("name", "tensor", "reason"),
    [
        ("l.bias", torch.ones(3), "1-D"),
        ("scale", torch.tensor(1.0), "a single number"),
        ("l.weight", torch.ones(0, 4), "empty"),
        ("ids", torch.ones(3, 3, dtype=torch.long), "int64, which is not read as a weight"),
        ("keep", torch.ones(3, 3, dtype=torch.bool), "bool, which is not read as a weight"),
        ("z", torch.ones(3, 3, dtype=torch.complex64), "complex64, which is not read as a weight"),
        ("h.0.attn.bias", torch.ones(1, 1, 4, 4), "causal mask"),
        ("h.0.attn.masked_bias", torch.tensor(-1e4), "mask"),
        ("rotary.inv_freq", torch.ones(4), "rotary table"),
        ("pos.pe", torch.ones(50, 8), "position table"),
        ("attn.freqs_cos", torch.ones(50, 8), "rotary table"),
        ("blocks.0.rope.cos", torch.ones(50, 8), "rotary table"),
        ("vq.embed_avg", torch.ones(50, 8), "moving average of a codebook"),
        ("tokens.attn_mask", torch.ones(4, 4), "mask"),
        ("anything", torch.tril(torch.ones(6, 6)), "causal mask"),
        ("anything", torch.tril(torch.ones(1, 1, 6, 6)), "causal mask"),
        ("anything", torch.full((6, 6), -float("inf")).triu(1), "causal mask"),
        ("h.0.attn.bias", torch.ones(1, 1, 4, 4, dtype=torch.uint8), "causal mask"),
        ("w.weight", torch.ones(3, 3, dtype=torch.int8), "int8, which is not read as a weight"),
        ("cls_token", torch.ones(1, 1, 8), "3-D, and not a convolution's weight"),
    ],
)
def test_what_is_skipped(name: str, tensor: torch.Tensor, reason: str) -> None:
    assert only(tensor, name) == reason


def test_matrices_that_only_look_like_masks() -> None:
    almost = torch.tril(torch.ones(6, 6))
    almost[3, 1] = 2
    assert only(almost) == ("linear", (6, 6), False)
    assert only(torch.eye(5)) == ("linear", (5, 5), False)
    assert only(torch.zeros(3, 3)) == ("linear", (3, 3), False)


def test_coverage_counts_parameters_and_not_buffers() -> None:
    found = planned(
        {
            "a.weight": torch.ones(9, 10),
            "a.bias": torch.ones(10),
            "pos.pe": torch.ones(50, 8),
            "ids": torch.arange(500),
            "b.weight": torch.ones(9, 10),
        },
        tied={"b.weight": "a.weight"},
    )
    assert found.coverage == pytest.approx(0.9)
    assert found.matrices[0].tied == ("b.weight",)
    assert [s.reason for s in found.skipped if s.name == "b.weight"] == ["tied to a.weight, analysed once"]


def test_quantised_weights_are_not_covered() -> None:
    found = planned({"a.weight": torch.ones(4, 4), "b.weight": torch.ones(4, 12, dtype=torch.int8)})
    assert found.coverage == pytest.approx(0.25)


def test_depthwise_convolutions_are_known_by_their_predecessor() -> None:
    filters = torch.ones(8, 1, 3, 3)
    # The first matrix of a net reads the input, which may have one channel.
    assert only(filters, l__bias=torch.ones(8)) == ("conv", (8, 9), False)
    assert planned({"time.weight": torch.ones(8, 5), "l.weight": filters}).matrices[1].role == "conv"
    before = {"a.weight": torch.ones(8, 5, 1, 1), "a.bias": torch.ones(8), "l.weight": filters}
    (_, matrix) = planned(before).matrices
    assert (matrix.role, matrix.shape, matrix.guessed) == ("depthwise conv", (8, 72), False)
    assert (matrix.rank, matrix.size, matrix.has_vectors) == (8, 72, False)
    assert matrix_of(matrix, filters).shape == (8, 9)
    assert planned(before).coverage == pytest.approx((40 + 72) / (40 + 72 + 8))
    (_, matrix) = planned(before | {"a.weight": torch.ones(16, 5, 1, 1)}).matrices
    assert (matrix.role, matrix.shape, matrix.guessed) == ("conv", (8, 9), True)


@pytest.mark.parametrize("ordered", [True, False])
def test_depthwise_convolutions_of_real_models(ordered: bool) -> None:
    """Their names say so in most; sorted names do not tell what comes before what."""

    def roles(**shapes: tuple[int, ...]) -> dict[str, str]:
        infos = {
            name: TensorInfo(name, shape, "float32")
            for key, shape in shapes.items()
            for name in [f"{key.replace('__', '.')}.weight"]
        }
        if not ordered:
            infos = {name: infos[name] for name in model_order(list(infos))}
        found = plan(infos, {}, reader({}), ordered=ordered)
        return {m.name.removesuffix(".weight"): m.role + " (guessed)" * m.guessed for m in found.matrices}

    mobilenet = roles(
        features__0__0=(32, 3, 3, 3), features__1__conv__0__0=(32, 1, 3, 3), features__1__conv__1=(16, 32, 1, 1)
    )
    assert mobilenet["features.1.conv.0.0"] == ("depthwise conv" if ordered else "conv (guessed)")
    inverted = roles(
        features__2__conv__0__0=(96, 16, 1, 1),
        features__2__conv__1__0=(96, 1, 3, 3),
        features__2__conv__2=(24, 96, 1, 1),
    )
    assert inverted["features.2.conv.1.0"] == "depthwise conv"
    timm = roles(conv_stem=(8, 3, 3, 3), blocks__0__0__conv_dw=(8, 1, 3, 3), blocks__0__0__conv_pw=(4, 8, 1, 1))
    assert timm["blocks.0.0.conv_dw"] == "depthwise conv"
    convnext = roles(stages__0__0__dwconv=(96, 1, 7, 7), stages__0__0__pwconv1=(384, 96))
    assert convnext["stages.0.0.dwconv"] == "depthwise conv"
    conformer = roles(l__0__conv__pointwise_conv1=(16, 8, 1), l__0__conv__depthwise_conv=(8, 1, 31))
    assert conformer["l.0.conv.depthwise_conv"] == "depthwise conv"
    mamba = roles(layers__0__mixer__in_proj=(32, 8), layers__0__mixer__conv1d=(16, 1, 4))
    assert mamba["layers.0.mixer.conv1d"] == "depthwise conv"
    jamba = roles(layers__0__mamba__in_proj=(32, 8), layers__0__mamba__conv1d=(16, 1, 4))
    assert jamba["layers.0.mamba.conv1d"] == "depthwise conv"
    unknown = roles(layers__0__inp=(16, 8), layers__0__conv=(16, 1, 4))
    assert unknown["layers.0.conv"] == "conv (guessed)", "it reads 16 maps, or is the first conv of a net"
    down = roles(dw1=(64, 1, 3, 3), dw2=(8, 64, 3, 3))
    assert down["dw1"] == ("conv" if ordered else "conv (guessed)"), "dw may mean down"
    lenet = roles(conv1=(6, 1, 5, 5), conv2=(16, 6, 5, 5), fc1=(120, 400))
    assert lenet["conv1"] == ("conv" if ordered else "conv (guessed)")
    grey = roles(encoder__0=(32, 1, 3, 3), encoder__2=(32, 32, 3, 3), decoder__0=(32, 32, 3, 3))
    assert grey["encoder.0"] in ("conv", "conv (guessed)")


def test_names_in_brackets_can_be_matched() -> None:
    infos = {"m.experts.w": TensorInfo("m.experts.w", (3, 4, 2), "float32")}

    def names(*globs: str) -> list[str]:
        found = plan(infos, {}, reader({}), lambda name: selected(name, globs, []))
        return [m.name for m in found.matrices]

    assert names("*w[0]") == names("m.experts.w[0]") == names("*[[]0]") == ["m.experts.w[0]"]
    assert names("*w[*]") == names("m.experts.w*") == [f"m.experts.w[{i}]" for i in range(3)]
    assert selected("layers.3.w", ["layers.[0-4].w"], [])
    parts = {"gate_up_proj.weight": TensorInfo("gate_up_proj.weight", (8, 3), "float32")}
    alone = plan(parts, {}, reader({}), lambda name: selected(name, ["*[gate]"], []))
    assert alone.coverage == 0.5


def test_names_that_the_parts_of_others_would_have() -> None:
    shapes = {"experts.w": (2, 3, 4), "experts.w[0]": (4, 5)}
    infos = {name: TensorInfo(name, shape, "float32") for name, shape in shapes.items()}
    found = plan(infos, {}, reader({}))
    assert [m.name for m in found.matrices] == ["experts.w[0]"]
    reasons = [one.reason for one in found.skipped]
    assert reasons == ["a stack whose matrices would have the names of other tensors"]


def test_many_convolutions_are_planned_in_one_pass() -> None:
    infos = {f"l.{i}.weight": TensorInfo(f"l.{i}.weight", (2, 1, 3), "float32") for i in range(20_000)}
    start = time.monotonic()
    assert len(plan(infos, {}, reader({})).matrices) == 20_000
    assert time.monotonic() - start < 10


def test_expert_stacks_are_known_by_name() -> None:
    stack = torch.arange(3 * 6 * 5.0).reshape(3, 6, 5)
    tensors = {"layers.0.mlp.experts.down_proj": stack, "layers.0.mlp.experts.down_proj_bias": torch.ones(3, 6)}
    infos = {name: TensorInfo(name, tuple(t.shape), "float32") for name, t in tensors.items()}
    found = plan(infos, {}, reader(tensors))
    assert [m.name for m in found.matrices] == [f"layers.0.mlp.experts.down_proj[{i}]" for i in range(3)]
    assert all(m.role == "expert" and m.shape == (6, 5) for m in found.matrices)
    assert torch.equal(matrix_of(found.matrices[2], stack), stack[2])
    assert found.skipped[0].reason == "1-D, one bias per expert"
    assert found.coverage == pytest.approx(90 / 108)
    picked = plan(
        infos,
        {},
        reader(tensors),
        lambda name: selected(name, ["*down_proj[[]1]"], []),
    )
    assert [m.name for m in picked.matrices] == ["layers.0.mlp.experts.down_proj[1]"]
    exact = plan(
        infos,
        {},
        reader(tensors),
        lambda name: selected(name, [found.matrices[1].name], []),
    )
    assert exact.matrices == [found.matrices[1]]
    assert only(torch.ones(3, 6, 5), "experts.0.conv.weight")[0] == "conv"
    assert only(torch.ones(3, 6, 5), "expert_conv.weight")[0] == "conv"
    assert only(torch.ones(3, 6, 5), "audio_expert.conv1.weight")[0] == "conv"
    assert only(torch.ones(3, 6, 5), "b.moe.conv.weight")[0] == "conv"
    assert is_expert_stack(TensorInfo("block_sparse_moe.input_linear.weight", (3, 6, 5), "float32"))
    assert only(torch.ones(3, 6, 5), "stack") == "3-D, and not a convolution's weight"


def test_fused_gate_and_up_projections_have_parts() -> None:
    fused = torch.arange(8 * 3.0).reshape(8, 3)
    infos = {"mlp.gate_up_proj.weight": TensorInfo("mlp.gate_up_proj.weight", (8, 3), "bfloat16")}
    found = plan(infos, {}, lambda name, index: fused)
    whole, gate, up = found.matrices
    assert [m.name for m in found.matrices] == [whole.tensor, f"{whole.tensor}[gate]", f"{whole.tensor}[up]"]
    assert torch.equal(torch.cat([matrix_of(gate, fused), matrix_of(up, fused)]), matrix_of(whole, fused))
    assert gate.shape == up.shape == (4, 3)
    assert found.coverage == 1.0

    def parts(name: str, **beside: tuple[int, ...]) -> list[str]:
        shapes = {name: (8, 3)} | {key.replace("__", "."): shape for key, shape in beside.items()}
        infos = {key: TensorInfo(key, shape, "float32") for key, shape in shapes.items()}
        return [m.name for m in plan(infos, {}, lambda name, index: fused).matrices if m.tensor == name]

    # OLMo's gate is the second half; where `ff_out` reads all of it there is no gate.
    assert parts("b.ff_proj.weight", b__ff_out__weight=(3, 4))[1:] == ["b.ff_proj.weight[up]", "b.ff_proj.weight[gate]"]
    assert parts("b.ff_proj.weight", b__ff_out__weight=(3, 8)) == ["b.ff_proj.weight"]
    assert parts("b.ff_proj.weight") == ["b.ff_proj.weight"]


def test_match_and_skip() -> None:
    tensors = {name: torch.ones(2, 2) for name in ("a.weight", "b.weight", "mlp[0].weight")}
    assert [m.name for m in planned(tensors, wants=lambda name: selected(name, ["a*", "b*"], [])).matrices] == [
        "a.weight",
        "b.weight",
    ]
    assert [m.name for m in planned(tensors, wants=lambda name: selected(name, [], ["b*"])).matrices] == [
        "a.weight",
        "mlp[0].weight",
    ]
    assert (
        planned(tensors, wants=lambda name: selected(name, ["a*"], [])).skipped[0].reason
        == "left out by --match or --skip"
    )


def test_model_order() -> None:
    names = ["lm_head.weight", "h.10.w", "h.9.w", "norm.w", "wte.weight", "h.0.head.w", "embed_out.weight"]
    assert model_order(names) == [
        "wte.weight",
        "h.0.head.w",
        "h.9.w",
        "h.10.w",
        "norm.w",
        "embed_out.weight",
        "lm_head.weight",
    ]
