"""Attention swapped inside models: the original's outputs where it must give them, and clear errors
where it cannot.
"""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers as T
from torch import Tensor, nn

from linformer_kit import LinformerAttention, resize_max_length
from linformer_kit.convert import linformerize, linformerized
from linformer_kit.convert.swapped import LinformerMultiheadAttention, visible_keys
from linformer_kit.core.window_rows import switch_off

if TYPE_CHECKING:
    from collections.abc import Callable

TINY: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
TEXT = TINY | NO_DROPOUT | {"vocab_size": 50, "max_position_embeddings": 128}
IMAGE: dict[str, Any] = TINY | {"image_size": 32, "patch_size": 4}  # 64 patches
SPEECH = TINY | {
    "conv_dim": (16, 16),
    "conv_stride": (5, 4),
    "conv_kernel": (10, 4),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "feat_extract_norm": "layer",
    "do_stable_layer_norm": True,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "feat_proj_dropout": 0.0,
    "layerdrop": 0.0,
    "mask_time_prob": 0.0,
    "mask_feature_prob": 0.0,
}
WHISPER = T.WhisperConfig(
    vocab_size=60,
    d_model=32,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=48,
    decoder_ffn_dim=48,
    max_source_positions=60,
    num_mel_bins=8,
    dropout=0.0,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=1,
)
B, N, M = 2, 60, 32


@dataclass(frozen=True)
class Case:
    """A tiny model and how it is called.

    differentiable: the name of its input. mask: the name of its mask of padding.
    """

    build: Callable[[], nn.Module]
    differentiable: str
    shape: tuple[int, ...]
    mask: str | None = None
    others: dict[str, Any] = field(default_factory=dict)
    left_alone: int = 0
    swapped: int = 2


def text(kind: type, config: type, swapped: int = 2, left_alone: int = 0, **more: Any) -> Case:
    return Case(
        lambda: kind(config(**TEXT | {"pad_token_id": 1} | more)),
        "inputs_embeds",
        (B, N, M),
        "attention_mask",
        swapped=swapped,
        left_alone=left_alone,
    )


def image(kind: type, config: type, **more: Any) -> Case:
    return Case(lambda: kind(config(**IMAGE | NO_DROPOUT | more)), "pixel_values", (B, 3, 32, 32))


def speech(kind: type, config: type) -> Case:
    return Case(
        lambda: kind(config(**SPEECH)), "input_values", (B, 1217), "attention_mask"
    )  # 60 frames


def vision_tower(kind: type, config: type) -> Case:
    return Case(
        lambda: kind(config(**IMAGE)),
        "pixel_values",
        (B, 3, 32, 32),
        left_alone=1 if "Siglip" in kind.__name__ else 0,
    )


CASES = {
    "bert": text(T.BertModel, T.BertConfig),
    "bert-masked-lm": text(T.BertForMaskedLM, T.BertConfig),
    "roberta": text(T.RobertaModel, T.RobertaConfig),
    "electra": text(T.ElectraModel, T.ElectraConfig, embedding_size=32),
    "esm": text(T.EsmModel, T.EsmConfig, position_embedding_type="rotary", mask_token_id=3),
    "esm-absolute": text(T.EsmModel, T.EsmConfig, mask_token_id=3),
    "albert": text(T.AlbertModel, T.AlbertConfig, swapped=1, embedding_size=32),
    "eurobert": text(  # rotary, two heads share keys
        T.EuroBertModel,
        T.EuroBertConfig,
        num_key_value_heads=2,
        bos_token_id=1,
        eos_token_id=2,
        mask_token_id=3,
    ),
    "modernbert": text(  # a layer of global and a layer of local attention
        T.ModernBertModel,
        T.ModernBertConfig,
        swapped=1,
        left_alone=1,
        cls_token_id=1,
        sep_token_id=2,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "bart": Case(
        lambda: T.BartModel(
            T.BartConfig(
                vocab_size=50,
                d_model=32,
                encoder_layers=2,
                decoder_layers=1,
                encoder_attention_heads=4,
                decoder_attention_heads=4,
                encoder_ffn_dim=48,
                decoder_ffn_dim=48,
                dropout=0.0,
            )
        ),
        "inputs_embeds",
        (B, N, M),
        "attention_mask",
        others={"decoder_input_ids": torch.tensor([[2, 4, 5], [2, 6, 7]])},
        left_alone=2,
    ),
    "distilbert": Case(
        lambda: T.DistilBertModel(
            T.DistilBertConfig(
                vocab_size=50,
                dim=32,
                n_layers=2,
                n_heads=4,
                hidden_dim=48,
                dropout=0.0,
                attention_dropout=0.0,
            )
        ),
        "inputs_embeds",
        (B, N, M),
        "attention_mask",
    ),
    "vit": image(T.ViTModel, T.ViTConfig),
    "vit-no-bias": image(T.ViTModel, T.ViTConfig, qkv_bias=False),
    "deit": image(T.DeiTModel, T.DeiTConfig),
    "dinov2": image(T.Dinov2Model, T.Dinov2Config),
    "clip-vision": vision_tower(T.CLIPVisionModel, T.CLIPVisionConfig),
    "siglip-vision": vision_tower(T.SiglipVisionModel, T.SiglipVisionConfig),
    "wav2vec2": speech(T.Wav2Vec2Model, T.Wav2Vec2Config),
    "hubert": speech(T.HubertModel, T.HubertConfig),
    "whisper": Case(
        lambda: T.WhisperForConditionalGeneration(WHISPER),
        "input_features",
        (B, 8, 120),
        others={"decoder_input_ids": torch.tensor([[1, 4, 5], [1, 6, 7]])},
        left_alone=4,
    ),
    "torch-encoder": Case(
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(M, 4, 48, dropout=0.0, batch_first=True), 2
        ),
        "src",
        (B, N, M),
        "src_key_padding_mask",
    ),
    "torch-encoder-length-first": Case(
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(M, 4, 48, dropout=0.0, norm_first=True, bias=False),
            2,
            enable_nested_tensor=False,
        ),
        "src",
        (N, B, M),
        "src_key_padding_mask",
    ),
}
MASKED = [name for name, case in CASES.items() if case.mask]
CALLS = [(name, masked) for masked in (False, True) for name in (MASKED if masked else CASES)]


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = CASES[name].build()
    with torch.no_grad():  # biases start at zero, where a lost one would not be seen
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    if hasattr(model, "feature_extractor"):  # otherwise it wants a leaf as its input
        model.feature_extractor._freeze_parameters()
    return model.double().eval()


def output(result: Any) -> Tensor:
    if isinstance(result, Tensor):
        return result
    return result.logits if "logits" in result else result.last_hidden_state


def call(case: Case, model: nn.Module, x: Tensor, mask: Tensor | None = None) -> Tensor:
    arguments = {case.differentiable: x}
    arguments |= {name: tensor[-x.shape[0] :] for name, tensor in case.others.items()}
    if mask is not None:
        assert case.mask
        arguments[case.mask] = ~mask if case.differentiable == "src" else mask.long()
    return output(model(**arguments))


def real_positions(mask: Tensor) -> Tensor:
    """Which outputs are of real positions, (B, N): of a mask of positions or of a sound."""
    if mask.shape[1] == N:
        return mask
    frames = ((mask.sum(1) - 10) // 5 + 1 - 4) // 4 + 1
    return torch.arange(N) < frames[:, None]


def input_of(case: Case) -> Tensor:
    return torch.randn(*case.shape, generator=torch.Generator().manual_seed(1)).double()


def padding_of(case: Case, x: Tensor, real: int = 41) -> Tensor:
    """The last positions of sample 1 are padding."""
    length = x.shape[0] if case.shape == (N, B, M) and case.differentiable == "src" else x.shape[1]
    mask = torch.ones(B, length, dtype=torch.bool)
    mask[1, length * real // N :] = False
    return mask


@pytest.mark.parametrize(
    "options", [{"k": 5, "window": 70}, {"k": 80, "window": 4}, {"k": 80, "window": 0}], ids=str
)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize(("name", "masked"), CALLS)
def test_a_window_over_the_input_or_a_row_for_each_position_gives_the_original(
    name: str, masked: bool, training: bool, options: dict[str, int]
) -> None:
    case = CASES[name]
    model = build(name).train(training)
    results = []
    for each in (model, linformerize(copy.deepcopy(model), max_length=80, **options)):
        x = input_of(case).requires_grad_()
        mask = padding_of(case, x) if masked else None
        y = call(case, each, x, mask)
        if mask is not None and y.shape[-2] != 3:  # not of a decoder
            real = real_positions(mask)
            y = y[real if y.shape[0] == B else real.t()]
        (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum().backward()
        results.append((y.detach(), x.grad))
    assert len([r for r in linformerized(each) if r.swapped]) == case.swapped
    assert len([r for r in linformerized(each) if not r.swapped]) == case.left_alone
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", CASES)
def test_a_short_window_changes_the_outputs_a_little_and_every_layer(name: str) -> None:
    case = CASES[name]
    model = build(name)
    x = input_of(case)
    with torch.no_grad():
        theirs = call(case, model, x)
        ours = call(case, linformerize(model, max_length=N, k=5, window=4), x)
    assert not torch.allclose(ours, theirs)
    cosine = torch.cosine_similarity(ours.flatten(), theirs.flatten(), dim=0)
    assert cosine > 0.9


@pytest.mark.parametrize("kind", ["mean", "linear", "conv", "fixed"])
@pytest.mark.parametrize("name", MASKED)
def test_padding_changes_nothing(name: str, kind: Any) -> None:
    case = CASES[name]
    model = linformerize(
        build(name), max_length=N + 4, k=5, window=4, global_tokens=2, projection=kind
    )
    x = input_of(case)
    mask = padding_of(case, x)
    length = int(mask[1].sum())
    with torch.no_grad():
        padded = call(case, model, x, mask)
        if case.shape == (N, B, M) and case.differentiable == "src":
            torch.testing.assert_close(padded[:length, 1], call(case, model, x[:length, 1:])[:, 0])
            return
        alone = call(case, model, x[1:, :length], mask[1:, :length])
    torch.testing.assert_close(padded[1, : alone.shape[1]], alone[0])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["mean", "linear", "conv", "fixed"])
def test_multihead_attention_becomes_linformer_attention(kind: Any, bias: bool) -> None:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(M, 4, bias=bias, batch_first=True).double()
    if bias:
        nn.init.normal_(theirs.in_proj_bias)
    options: dict[str, Any] = {"max_length": N, "k": 6, "window": 8, "global_tokens": 1}
    oracle = LinformerAttention(dim=M, num_heads=4, projection=kind, bias=bias, **options).double()
    ours = linformerize(theirs, projection=kind, **options)
    assert ours is theirs
    given = [t.chunk(3) for t in (ours.in_proj_weight, ours.in_proj_bias) if t is not None]
    parts = zip(*given, strict=True)
    with torch.no_grad():
        for linear, part in zip((oracle.q_proj, oracle.k_proj, oracle.v_proj), parts, strict=True):
            for own, value in zip(linear.parameters(), part, strict=True):
                own.copy_(value)
        oracle.out_proj.load_state_dict(ours.out_proj.state_dict())
        if oracle.row_bias is not None:
            oracle.row_bias.copy_(ours.linformer.row_bias)
        if oracle.projection is not None and list(oracle.projection.state_dict()):
            oracle.projection.load_state_dict(ours.linformer.projection.state_dict())
    mask = torch.ones(B, N, dtype=torch.bool)
    mask[1, 40:] = False
    results = []
    for attend in (
        lambda x: oracle(x, mask=mask),
        lambda x: ours(x, x, x, key_padding_mask=~mask)[0],
    ):
        x = torch.randn(B, N, M, generator=torch.Generator().manual_seed(1)).double()
        y = attend(x.requires_grad_())[mask]
        y.square().sum().backward()
        results += [(y.detach(), x.grad[mask])]
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


def test_multihead_attention_takes_every_layout_of_its_input() -> None:
    torch.manual_seed(0)
    first = linformerize(nn.MultiheadAttention(M, 4, batch_first=True), max_length=N, k=5, window=4)
    last = copy.deepcopy(first)
    last.batch_first = False
    x, padding = torch.randn(B, N, M), torch.zeros(B, N, dtype=torch.bool)
    padding[1, 50:] = True
    y, weights = first(x, x, x, key_padding_mask=padding, need_weights=True)
    assert weights is None
    t = x.transpose(0, 1)
    torch.testing.assert_close(last(t, t, t, key_padding_mask=padding)[0].transpose(0, 1), y)
    one = x[1]
    torch.testing.assert_close(last(one, one, one, key_padding_mask=padding[1])[0], y[1])
    added = torch.zeros(B, N).masked_fill(padding, -torch.inf)
    torch.testing.assert_close(first(x, x, x, key_padding_mask=added)[0], y)


def test_values_may_come_from_another_tensor_than_queries_and_keys() -> None:
    torch.manual_seed(0)
    exact = nn.MultiheadAttention(M, 4, batch_first=True)
    nn.init.normal_(exact.in_proj_bias)
    ours = linformerize(copy.deepcopy(exact), max_length=N, k=5, window=N)
    x, positions = torch.randn(B, N, M), torch.randn(B, N, M)
    both = x + positions
    torch.testing.assert_close(ours(both, both, x)[0], exact(both, both, x)[0])


def test_cross_attention_by_a_swapped_module_is_exact_and_warned_of() -> None:
    exact = nn.MultiheadAttention(M, 4, batch_first=True).eval()
    ours = linformerize(copy.deepcopy(exact), max_length=N, k=5, window=2)
    x, context = torch.randn(B, 7, M), torch.randn(B, N, M)
    with pytest.warns(UserWarning, match=r"cross-attention, computed exactly.*keep_full"):
        y = ours(x, context, context)[0]
    torch.testing.assert_close(y, exact(x, context, context)[0])


def test_dropout_of_weights_is_kept() -> None:
    attention = nn.MultiheadAttention(M, 4, dropout=0.5, batch_first=True)
    attention = linformerize(attention, max_length=N, k=5, window=4)
    x = torch.randn(B, N, M)
    assert not torch.equal(attention(x, x, x)[0], attention(x, x, x)[0])
    attention.eval()
    assert torch.equal(attention(x, x, x)[0], attention(x, x, x)[0])


def test_the_encoder_of_torch_calls_the_swapped_attention_in_inference() -> None:
    # Its fused kernels would read the weights and never call the attention module.
    model = linformerize(build("torch-encoder").float(), max_length=N, k=5, window=4)
    x = torch.randn(B, N, M)
    padding = torch.zeros(B, N, dtype=torch.bool)
    padding[1, 40:] = True
    for mask in (None, padding):
        with torch.inference_mode():
            fast = model(x, src_key_padding_mask=mask)
        torch.testing.assert_close(fast, model(x, src_key_padding_mask=mask).detach())
    long = torch.randn(1, 500, M)
    assert model(long).shape == long.shape


@pytest.mark.parametrize("given", [{"mask": torch.zeros(N, N)}, {"is_causal": True}])
def test_masks_of_pairs_are_refused(given: dict[str, Any]) -> None:
    model = linformerize(build("torch-encoder").float(), max_length=N, k=5, window=4)
    with pytest.raises(ValueError, match=r"no mask of pairs.*got.*keep_full"):
        model(torch.randn(B, N, M), **given)


def test_a_mask_of_whole_numbers_is_refused_as_by_torch() -> None:
    attention = linformerize(nn.MultiheadAttention(M, 4, batch_first=True), max_length=N, k=5)
    x = torch.randn(B, N, M)
    with pytest.raises(ValueError, match=r"boolean \(True = padding\) or.*torch.int64"):
        attention(x, x, x, key_padding_mask=torch.zeros(B, N, dtype=torch.long))


def test_masks_other_than_of_padding_are_refused() -> None:
    causal = torch.ones(1, 1, 4, 4, dtype=torch.bool).tril()
    with pytest.raises(ValueError, match="differs between queries"):
        visible_keys(causal)
    with pytest.raises(ValueError, match="0 or very low"):
        visible_keys(torch.tensor([[0.0, -1.0]]))
    with pytest.raises(ValueError, match=r"\(batch, length\)"):
        visible_keys(torch.ones(4, dtype=torch.bool))
    padding = torch.tensor([[True, False]])
    added = torch.zeros(1, 1, 2, 2).masked_fill(~padding, torch.finfo(torch.float32).min)
    assert visible_keys(added).tolist() == padding.tolist()
    bert = linformerize(build("bert").float(), max_length=N, k=5, window=2)
    with pytest.raises(ValueError, match="differs between queries"):
        bert(torch.ones(1, 4, dtype=torch.long), attention_mask=causal)


def test_names_and_values_of_the_weights_stay() -> None:
    for name in ("bert", "whisper", "torch-encoder"):
        model = build(name)
        before = {n: t.clone() for n, t in model.state_dict().items()}
        after = linformerize(model, max_length=N, k=5, window=4).state_dict()
        assert list(before) == list(after)
        assert all(torch.equal(before[n], after[n]) for n in before)
        assert type(model) is type(build(name))


def test_learned_projections_are_new_parameters_that_are_trained() -> None:
    model = build("bert")
    before = set(model.state_dict())
    linformerize(model, max_length=N, k=5, window=4, projection="linear", sharing="headwise")
    new = set(model.state_dict()) - before
    prefix = "encoder.layer.0.attention.self.linformer."
    assert {n for n in new if ".0." in n} == {prefix + "projection.weight", prefix + "row_bias"}
    call(CASES["bert"], model, input_of(CASES["bert"])).square().sum().backward()
    assert all(p.grad is not None for n, p in model.named_parameters() if n in new)


def test_linear_starts_as_segment_means() -> None:
    case = CASES["vit"]
    x = input_of(case)
    options: dict[str, Any] = {"max_length": 65, "k": 13, "window": 4}
    with torch.no_grad():
        mean, linear = (
            call(case, linformerize(build("vit"), projection=kind, **options), x)
            for kind in ("mean", "conv")
        )
    assert torch.cosine_similarity(mean.flatten(), linear.flatten(), dim=0) > 0.99


def test_causal_and_cross_attention_are_left_alone_and_listed() -> None:
    clip = T.CLIPModel(
        T.CLIPConfig(text_config=TINY | {"vocab_size": 50}, vision_config=IMAGE, projection_dim=8)
    )
    linformerize(clip, max_length=65, k=5, window=4)
    records = linformerized(clip)
    assert {(r.name.split(".")[0], r.swapped, r.why) for r in records} == {
        ("text_model", False, "causal attention"),
        ("vision_model", True, ""),
    }
    whisper = linformerize(build("whisper"), max_length=N, k=5, window=4)
    assert [(r.swapped, r.why) for r in linformerized(whisper)] == [
        *[(True, "")] * 2,
        *[(False, "causal attention"), (False, "cross-attention")] * 2,
    ]
    torch_model = linformerize(
        nn.Transformer(M, 4, 1, 1, 48, batch_first=True), max_length=N, k=5, window=4
    )
    assert [(r.name, r.kind, r.swapped, r.why, r.k) for r in linformerized(torch_model)] == [
        ("encoder.layers.0.self_attn", "LinformerMultiheadAttention", True, "", 5),
        ("decoder.layers.0.self_attn", "MultiheadAttention", False, "causal attention", None),
        ("decoder.layers.0.multihead_attn", "MultiheadAttention", False, "cross-attention", None),
    ]


def test_the_decoder_beside_a_swapped_encoder_generates_as_before() -> None:
    model = build("whisper").float()
    features = input_of(CASES["whisper"]).float()
    original = model.generate(features, max_new_tokens=8, num_beams=2)
    same = linformerize(copy.deepcopy(model), max_length=N, k=5, window=N)
    assert torch.equal(same.generate(features, max_new_tokens=8, num_beams=2), original)
    clip = T.CLIPModel(
        T.CLIPConfig(text_config=TINY | {"vocab_size": 50}, vision_config=IMAGE, projection_dim=8)
    ).eval()
    ids = torch.randint(3, 49, (2, 9))
    mask = torch.tensor([[1] * 9, [1] * 6 + [0] * 3])
    before = clip.text_model(ids, attention_mask=mask).last_hidden_state
    linformerize(clip, max_length=65, k=5, window=4)
    after = clip.text_model(ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(after, before)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("keep", [0, "encoder.layer.0.attention.self"])
def test_kept_layers_stay_exact_with_padding(implementation: str, keep: Any) -> None:
    case, model = CASES["bert"], build("bert")
    model.set_attn_implementation(implementation)
    x = input_of(case)
    mask = padding_of(case, x)
    ours = linformerize(copy.deepcopy(model), max_length=N, k=5, window=4, keep_full=[keep])
    assert [(r.swapped, r.why) for r in linformerized(ours)] == [(False, "kept exact"), (True, "")]
    arguments = {
        "inputs_embeds": x,
        "attention_mask": mask.long(),
        "output_hidden_states": True,
        "output_attentions": implementation == "eager",
    }
    theirs, mine = model(**arguments), ours(**arguments)
    torch.testing.assert_close(mine.hidden_states[1][mask], theirs.hidden_states[1][mask])
    assert not torch.allclose(mine.hidden_states[2][mask], theirs.hidden_states[2][mask])
    if implementation == "eager":
        torch.testing.assert_close(mine.attentions[0], theirs.attentions[0])


def test_a_model_with_the_same_config_stays_exact() -> None:
    config = T.BertConfig(**TEXT)
    torch.manual_seed(0)
    teacher, student = T.BertModel(config).eval(), T.BertModel(config).eval()
    ids, mask = torch.randint(2, 49, (B, N)), torch.ones(B, N, dtype=torch.long)
    mask[1, 30:] = 0
    before = teacher(ids, attention_mask=mask).last_hidden_state
    linformerize(student, max_length=N, k=5, window=4)
    torch.testing.assert_close(teacher(ids, attention_mask=mask).last_hidden_state, before)


def test_k_may_differ_between_layers() -> None:
    model = linformerize(build("bert"), max_length=N, k=[3, 7], window=4)
    assert [r.k for r in linformerized(model)] == [3, 7]
    with pytest.raises(ValueError, match=r"one for each of the 2 attention modules.*got 3"):
        linformerize(build("bert"), max_length=N, k=[3, 7, 9], window=4)


def test_relative_positions_are_left_alone() -> None:
    beit = T.BeitModel(T.BeitConfig(**IMAGE, vocab_size=10, use_relative_position_bias=True))
    with pytest.raises(ValueError, match=r"found BeitAttention \(its scores depend on relative"):
        linformerize(beit, max_length=65, k=5, window=4)


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (lambda: nn.Linear(4, 4), "no attention module"),
        (lambda: nn.MultiheadAttention(8, 2, kdim=4), r"MultiheadAttention \(cross-attention"),
        (lambda: nn.MultiheadAttention(8, 2, add_zero_attn=True), "add_zero_attn is set"),
        (lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True), "add_bias_kv is set"),
        (
            lambda: T.GPT2Model(T.GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2)),
            r"GPT2Attention \(causal attention",
        ),
        (
            lambda: T.MPNetModel(T.MPNetConfig(**TINY, vocab_size=9)),
            r"MPNetSelfAttention \(its code does not use",
        ),
    ],
)
def test_a_model_without_attention_to_swap_is_refused(model: Any, found: str) -> None:
    with pytest.raises(ValueError, match=rf"can be swapped: found .*{found}.*Supported: nn.Multi"):
        linformerize(model(), max_length=64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 0}, "max_length must be at least 1"),
        ({"k": 0, "window": 0}, "k must be at least 1"),
        ({"k": -1}, "k must be at least 0"),
        ({"k": N + 1}, "k must be at most max_length"),
        ({"window": -1}, "window must be at least 0"),
        ({"global_tokens": -1}, "global_tokens must be at least 0"),
        ({"projection": "max"}, "projection must be one of"),
        ({"sharing": "layerwise"}, "sharing must be one of"),
        ({"keep_full": [2]}, r"numbers from 0 to 1 or names.*got 2"),
        ({"keep_full": ["encoder"]}, "got 'encoder'"),
        ({"keep_full": [0, 1]}, "nothing would be swapped"),
    ],
)
def test_wrong_options_are_refused_and_change_nothing(
    options: dict[str, Any], message: str
) -> None:
    model = build("bert")
    with pytest.raises(ValueError, match=message):
        linformerize(model, **{"max_length": N, "k": 5, "window": 4} | options)
    assert not any(r.swapped for r in linformerized(model))


def test_a_model_is_linformerized_once() -> None:
    model = linformerize(build("vit"), max_length=65, k=5, window=4)
    with pytest.raises(ValueError, match="already"):
        linformerize(model, max_length=65, k=5, window=4)


def test_inputs_longer_than_max_length() -> None:
    x = torch.randn(B, N, M)
    for kind, takes in (("mean", True), ("conv", True), ("linear", False), ("fixed", False)):
        model = linformerize(
            build("torch-encoder").float(), max_length=30, k=5, window=4, projection=kind
        )
        if takes:
            assert model(x).shape == x.shape
        else:
            with pytest.raises(ValueError, match="at most max_length=30"):
                model(x)
            assert resize_max_length(model, N)(x).shape == x.shape


def test_a_window_or_rows_alone() -> None:
    x = torch.randn(B, N, M)
    for options in ({"k": 0, "window": 8}, {"k": 8, "window": 0}):
        model = linformerize(build("torch-encoder").float(), max_length=N, **options)
        assert torch.isfinite(model(x)).all()
    both = linformerize(build("torch-encoder").float(), max_length=N, k=8, window=8)
    window = linformerize(build("torch-encoder").float(), max_length=N, k=0, window=8)
    switch_off(both, "rows")
    torch.testing.assert_close(both(x), window(x))


@pytest.mark.slow
def test_compiled_models_give_the_same() -> None:
    for name in ("bert", "torch-encoder"):
        case = CASES[name]
        model = linformerize(build(name), max_length=N, k=5, window=4)
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        x = input_of(case)
        mask = padding_of(case, x)
        torch.testing.assert_close(call(case, compiled, x, mask), call(case, model, x, mask))


def test_exact_attention_can_be_switched_back_on() -> None:
    case, model = CASES["bert"], build("bert")
    x = input_of(case)
    theirs = call(case, model, x)
    ours = linformerize(copy.deepcopy(model), max_length=N, k=5, window=4)
    ours.set_attn_implementation("sdpa")
    torch.testing.assert_close(call(case, ours, x), theirs)


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
def test_layers_without_parameters_are_swapped_too() -> None:
    config = T.BertConfig(**TEXT)
    model = torch.ao.quantization.quantize_dynamic(T.BertModel(config).eval(), {nn.Linear})
    student = linformerize(
        copy.deepcopy(model), max_length=N, k=4, window=N // 2, projection="pool"
    )
    ids = torch.randint(2, 50, (B, N))
    with torch.no_grad():
        expected, found = (each(ids).last_hidden_state for each in (model, student))
    torch.testing.assert_close(found, expected)


def test_an_attention_used_twice_is_swapped_once() -> None:
    layer = nn.TransformerEncoderLayer(M, 4, 48, batch_first=True)
    model = nn.Sequential(layer, layer)
    linformerize(model, max_length=N, k=5, window=4)
    assert len(linformerized(model)) == 1
    assert model[0].self_attn is model[1].self_attn
    assert isinstance(layer.self_attn, LinformerMultiheadAttention)


@pytest.mark.slow
def test_a_pickled_model_runs_in_another_process(tmp_path: Any) -> None:
    model = linformerize(build("bert").float(), max_length=N, k=5, window=4)
    ids = torch.arange(2, 42)[None]
    file = tmp_path / "model.pickle"
    file.write_bytes(pickle.dumps((model, ids, model(ids).last_hidden_state.detach())))
    code = (
        "import pickle, sys, torch\n"
        "model, ids, theirs = pickle.load(open(sys.argv[1], 'rb'))\n"
        "torch.testing.assert_close(model(ids).last_hidden_state, theirs)"
    )
    subprocess.run([sys.executable, "-c", code, str(file)], check=True, timeout=120)


def test_plain_modules_need_no_transformers() -> None:
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "import torch; from linformer_kit.convert import linformerize\n"
        "layer = torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)\n"
        "for kind in ('mean', 'linear'):\n"
        "    model = torch.nn.TransformerEncoder(layer, 1)\n"
        "    linformerize(model, max_length=64, k=4, window=4, projection=kind)\n"
        "    model(torch.randn(1, 50, 8))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
