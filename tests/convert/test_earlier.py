"""Models of the earlier implementations have equal outputs after conversion, and back."""

from __future__ import annotations

import argparse
import itertools
import math
import os
import pickle

import pytest
import torch
import torch.nn.functional as F

from linformer_kit.convert.earlier import (
    convert_file,
    from_fairseq,
    from_linformer,
    from_linformer_pytorch,
    to_fairseq,
    to_linformer,
    to_linformer_pytorch,
)
from linformer_kit.core.attention import LinformerAttention
from linformer_kit.core.cost import encoder_parameters
from linformer_kit.core.encoder import LinformerEncoder
from linformer_kit.core.plan import Plan
from linformer_kit.errors import UserError
from linformer_kit.models import LinformerConfig, LinformerForMaskedLM, LinformerModel

N, DIM, WORDS = 12, 16, 11


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def randomized(module):
    """Random weights and biases: a converter that forgets one changes the outputs."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            std = 0.3 if parameter.dim() > 1 else 0.2
            offset = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * std + offset)
    return module.eval()


def rows(length=N):
    return torch.randn(2, length, DIM, generator=torch.Generator().manual_seed(length))


def ids(length=N):
    return torch.randint(WORDS, (2, length), generator=torch.Generator().manual_seed(length))


# --- linformer 0.2.3

LUCID = [
    {"heads": heads, "dim_head": dim_head, "one_kv_head": one, "share_kv": share, "depth": depth}
    for heads, dim_head, one, share, depth in itertools.product(
        (1, 4), (None, 5), (False, True), (False, True), (1, 2)
    )
]


@pytest.fixture
def lucid():
    return pytest.importorskip("linformer")


@torch.no_grad()
@pytest.mark.parametrize("options", LUCID, ids=str)
def test_linformer_is_equal_over_its_options_and_back(lucid, options):
    theirs = randomized(lucid.Linformer(DIM, N, k=3, **options))
    for source in (theirs, theirs.state_dict()):
        ours = from_linformer(source, heads=options["heads"])
        assert isinstance(ours, LinformerEncoder)
        for length in (N, 7):  # they cut E off for shorter inputs
            close(ours(rows(length)), theirs(rows(length)))
    arguments, tensors = to_linformer(ours)
    back = lucid.Linformer(**arguments)
    back.load_state_dict(tensors)
    close(back(rows()), theirs(rows()))


@torch.no_grad()
@pytest.mark.parametrize("options", LUCID[::3], ids=str)
def test_linformer_lm_is_equal_and_back(lucid, options):
    theirs = randomized(lucid.LinformerLM(WORDS, DIM, N, k=3, **options))
    ours = from_linformer(theirs)
    assert isinstance(ours, LinformerForMaskedLM)
    close(ours(ids(5)).logits, theirs(ids(5)))
    arguments, tensors = to_linformer(ours)
    back = lucid.LinformerLM(**arguments)
    back.load_state_dict(tensors)
    close(back(ids()), theirs(ids()))


@torch.no_grad()
@pytest.mark.parametrize("options", LUCID[::2], ids=str)
def test_linformer_self_attention_is_equal_with_a_context(lucid, options):
    options = {name: value for name, value in options.items() if name != "depth"}
    theirs = randomized(lucid.LinformerSelfAttention(DIM, N, k=3, **options))
    ours = from_linformer(theirs)
    assert isinstance(ours, LinformerAttention)
    close(ours(rows(9)), theirs(rows(9)))
    close(ours(rows(9), context=rows(6)), theirs(rows(9), rows(6)))


def test_values_as_keys_give_equal_weights(lucid):
    ours = from_linformer(lucid.Linformer(DIM, N, 1, k=3, heads=4, share_kv=True))
    attention = ours.layers[0].attention
    assert attention.sharing == "kv"
    assert torch.equal(attention.k_proj.weight, attention.v_proj.weight)


def test_a_linformer_inside_a_larger_model_has_a_prefix(lucid):
    vit = torch.nn.ModuleDict({"transformer": lucid.Linformer(DIM, N, 2, k=3, heads=4)})
    vit["head"] = torch.nn.Linear(2, 2)
    ours = from_linformer(vit.state_dict(), heads=4, prefix="transformer.")
    close(ours(rows()), vit["transformer"](rows()))
    with pytest.raises(UserError, match=r"lacks 'net.layers.0.0.fn.to_q.weight'.*prefix"):
        from_linformer(vit.state_dict(), heads=4)
    with pytest.raises(UserError, match=r"starts with the prefix 'body\.'"):
        from_linformer(vit.state_dict(), heads=4, prefix="body.")


def test_reversible_layers_are_refused(lucid):
    for kind, sizes in ((lucid.Linformer, (DIM, N, 1)), (lucid.LinformerLM, (WORDS, DIM, N, 1))):
        with pytest.raises(UserError, match="reversible=True"):
            from_linformer(kind(*sizes, k=3, reversible=True))


def test_heads_must_be_given_for_a_state_dict_and_fit(lucid):
    tensors = lucid.Linformer(DIM, N, 1, k=3, heads=4).state_dict()
    with pytest.raises(UserError, match=r"heads=None.*Pass the heads"):
        from_linformer(tensors)
    with pytest.raises(UserError, match="got heads=3"):
        from_linformer(tensors, heads=3)


def test_missing_and_unknown_tensors_are_named(lucid):
    tensors = lucid.Linformer(DIM, N, 1, k=3, heads=4).state_dict()
    with pytest.raises(UserError, match=r"unknown in linformer: got net.extra"):
        from_linformer(tensors | {"net.extra": torch.zeros(1)}, heads=4)
    del tensors["net.layers.0.0.fn.proj_v"]
    with pytest.raises(UserError, match=r"lacks 'net.layers.0.0.fn.proj_v'"):
        from_linformer(tensors, heads=4)


def test_tensors_of_other_shapes_are_refused(lucid):
    tensors = lucid.Linformer(DIM, N, 1, k=3, heads=4).state_dict()
    tensors["net.layers.0.0.norm.weight"] = torch.zeros(3)
    with pytest.raises(UserError, match="do not fit each other"):
        from_linformer(tensors, heads=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "post"}, "norm='pre'"),
        ({"final_norm": True}, "final_norm=False"),
        ({"activation": "relu"}, "activation='gelu'"),
        ({"sharing": "none"}, "sharing='headwise' or 'kv' or 'layerwise': got 'none'"),
        ({"window": 2}, "window=0"),
        ({"ff_dim": 8}, "ff_dim=64"),
        ({"projection": "mean"}, "projection='linear'"),
        ({"positions": "learned"}, "positions='none'"),
        ({"depth": 2, "k": [3, 2]}, r"k=\[3, 3\]"),
        ({"qkv_bias": True}, "no place for encoder.layers.0.attention.q_proj.bias"),
        ({"projection_bias": True}, "no place for encoder.projection.bias"),
    ],
    ids=str,
)
def test_what_linformer_cannot_express_is_refused(options, message):
    usual = {"depth": 1, "k": 3, "final_norm": False, "keep_scale": False, "qkv_bias": False}
    sizes = {"dim": DIM, "num_heads": 4, "max_length": N}
    encoder = LinformerEncoder(**sizes, **usual | options)
    with pytest.raises(UserError, match=message):
        to_linformer(randomized(encoder))


def test_a_model_that_keeps_its_scale_warns_on_the_way_back():
    encoder = LinformerEncoder(
        dim=DIM, depth=1, num_heads=4, max_length=N, k=3, final_norm=False, qkv_bias=False
    )
    with pytest.warns(UserWarning, match="keep_scale=True"):
        to_linformer(encoder)


# --- linformer-pytorch 0.19.3


@pytest.fixture
def tatp():
    return pytest.importorskip("linformer_pytorch")


TATP = [
    {"parameter_sharing": sharing, "depth": depth, **more}
    for sharing, depth, more in itertools.product(
        ("none", "headwise", "kv", "layerwise"),
        (1, 3),
        (
            {},
            {"activation": "relu", "dim_d": 5},
            {"k_reduce_by_layer": 1, "checkpoint_level": "C1"},
            {"full_attention": True},
        ),
    )
]


@torch.no_grad()
@pytest.mark.parametrize("options", TATP, ids=str)
def test_linformer_pytorch_is_equal_over_its_options_and_back(tatp, options):
    theirs = randomized(tatp.Linformer(N, DIM, 4, dim_ff=24, **options))
    ours = from_linformer_pytorch(theirs)
    assert isinstance(ours, LinformerEncoder)
    close(ours(rows()), theirs(rows()))
    arguments, tensors = to_linformer_pytorch(ours)
    back = tatp.Linformer(**arguments).eval()
    back.load_state_dict(tensors)
    close(back(rows()), theirs(rows()))


@torch.no_grad()
@pytest.mark.parametrize("options", TATP, ids=str)
def test_a_state_dict_of_linformer_pytorch_needs_what_it_does_not_have(tatp, options):
    theirs = randomized(tatp.Linformer(N, DIM, 4, dim_ff=24, **options))
    given = {n: options[n] for n in ("activation", "full_attention") if n in options}
    close(from_linformer_pytorch(theirs.state_dict(), **given)(rows()), theirs(rows()))


@torch.no_grad()
@pytest.mark.parametrize("options", TATP[::3], ids=str)
def test_linformer_pytorch_lm_is_equal_and_back(tatp, options):
    theirs = randomized(tatp.LinformerLM(WORDS, N, DIM, dim_k=4, **options))
    ours = from_linformer_pytorch(theirs)
    assert isinstance(ours, LinformerForMaskedLM)
    close(ours(ids()).logits, theirs(ids()))
    arguments, tensors = to_linformer_pytorch(ours)
    back = tatp.LinformerLM(**arguments).eval()
    back.load_state_dict(tensors)
    close(back(ids()), theirs(ids()))


@torch.no_grad()
def test_linformer_pytorch_without_logits_is_a_model(tatp):
    theirs = randomized(tatp.LinformerLM(WORDS, N, DIM, dim_k=4, return_emb=True))
    ours = from_linformer_pytorch(theirs)
    assert isinstance(ours, LinformerModel)
    close(ours(ids()).last_hidden_state, theirs(ids()))


@torch.no_grad()
@pytest.mark.parametrize("sharing", ["none", "headwise", "kv"])
def test_its_attention_is_equal(tatp, sharing):
    theirs = tatp.MHAttention(N, 4, DIM, 3, 4, 0.0, "C0", sharing, None, None, False, None)
    ours = from_linformer_pytorch(randomized(theirs))
    assert isinstance(ours, LinformerAttention)
    assert ours.sharing == sharing
    close(ours(rows()), theirs(rows()))


@torch.no_grad()
@pytest.mark.parametrize("sharing", ["none", "headwise", "kv", "layerwise"])
def test_its_input_mask_is_our_mask(tatp, sharing):
    theirs = randomized(tatp.Linformer(N, DIM, 4, depth=2, parameter_sharing=sharing))
    mask = torch.arange(N) < torch.tensor([[N], [7]])
    ours = from_linformer_pytorch(theirs)(rows(), mask=mask)
    close(ours[mask], theirs(rows(), input_mask=mask)[mask])


def test_the_sharing_is_that_of_the_values(tatp):
    for sharing in ("none", "headwise", "kv", "layerwise"):
        theirs = tatp.Linformer(N, DIM, 4, depth=2, parameter_sharing=sharing)
        assert from_linformer_pytorch(theirs).layers[0].attention.sharing == sharing


def test_a_bias_of_e_that_is_zero_needs_no_projection_bias(tatp):
    theirs = tatp.Linformer(N, DIM, 4, depth=2, parameter_sharing="kv")
    for layer in theirs.seq[::2]:
        torch.nn.init.zeros_(layer.fn.heads[0].E.bias)
    assert not from_linformer_pytorch(theirs).layers[0].attention.projection_bias


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"causal": True}, "causal=True"),
        ({"causal": True, "full_attention": True}, "causal=True"),
        ({"decoder_mode": True}, "decoder_mode=True"),
        ({"include_ff": False}, "include_ff=False"),
        ({"ff_intermediate": 8, "depth": 2, "parameter_sharing": "kv"}, "ff_intermediate"),
        ({"method": "convolution"}, "method='convolution'.*Train with method='learnable'"),
        ({"method": "no_params"}, "method='no_params'.*Train with method='learnable'"),
        ({"w_o_intermediate_dim": 7, "nhead": 1}, "w_o_intermediate_dim.*Save their product"),
    ],
    ids=str,
)
def test_options_of_linformer_pytorch_without_counterpart_are_refused(tatp, options, message):
    with pytest.raises(UserError, match=message):
        from_linformer_pytorch(tatp.Linformer(N, DIM, 4, **options))


@torch.no_grad()
def test_of_an_encoder_with_a_decoder_the_encoder_is_converted(tatp):
    sizes = {"enc_num_tokens": WORDS, "enc_input_size": N, "enc_channels": DIM}
    sizes |= {"dec_num_tokens": WORDS, "dec_input_size": N, "dec_channels": DIM}
    theirs = randomized(tatp.LinformerEncDec(**sizes, enc_dim_k=4, dec_dim_k=4))
    with pytest.raises(UserError, match=r"LinformerEncDec.*prefix='encoder.'"):
        from_linformer_pytorch(theirs)
    with pytest.raises(UserError, match="decoder_mode=True"):
        from_linformer_pytorch(theirs, prefix="decoder.")
    ours = from_linformer_pytorch(theirs, prefix="encoder.")
    close(ours(ids()).last_hidden_state, theirs.encoder(ids()))


def test_embeddings_of_another_width_are_refused(tatp):
    theirs = tatp.LinformerLM(WORDS, N, DIM, dim_k=4, emb_dim=6)
    for source in (theirs, theirs.state_dict()):
        with pytest.raises(UserError, match=r"it has emb_dim.*Train with emb_dim=None"):
            from_linformer_pytorch(source)


def test_learned_positions_are_no_sinusoids(tatp):
    ours = from_linformer_pytorch(tatp.LinformerLM(WORDS, N, DIM, dim_k=4))
    torch.nn.init.normal_(ours.linformer.embeddings.positions.weight)
    with pytest.raises(UserError, match="sinusoids"):
        to_linformer_pytorch(ours)


# --- fairseq


def fairseq_tensors(*, shared_kv=False, shared_layer=False, tied=True, pre=False, old=False):
    """A state dict with the names of linformer_roberta: 2 layers, padding_idx 1, k = 4."""
    generator = torch.Generator().manual_seed(5)

    def random(*shape):
        return torch.randn(shape, generator=generator) * 0.3

    def linear(name, out, size):
        return {f"{name}.weight": random(out, size), f"{name}.bias": random(out)}

    def norm(name):
        return {f"{name}.weight": 1 + random(DIM), f"{name}.bias": random(DIM)}

    stack = ("decoder" if old else "encoder") + ".sentence_encoder."
    found = {f"{stack}embed_tokens.weight": random(WORDS, DIM)}
    found[f"{stack}embed_positions.weight"] = random(N + 2, DIM)
    found |= norm(f"{stack}{'emb_layer_norm' if old else 'layernorm_embedding'}")
    compress = linear("", 4, N)
    if shared_layer:
        found |= {f"{stack}compress_layer{name}": each for name, each in compress.items()}
    for i in range(2):
        layer = f"{stack}layers.{i}."
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            found |= linear(f"{layer}self_attn.{name}", DIM, DIM)
        for side in ("k",) if shared_kv else ("k", "v"):
            own = compress if shared_layer else {".weight": random(4, N)}
            found |= {f"{layer}self_attn.compress_{side}{n}": each for n, each in own.items()}
        found |= norm(f"{layer}self_attn_layer_norm") | norm(f"{layer}final_layer_norm")
        found |= linear(f"{layer}fc1", 24, DIM) | linear(f"{layer}fc2", DIM, 24)
        found[f"{layer}version"] = torch.tensor(2)
    found |= norm(f"{stack}layer_norm") if pre else {}
    head = ("decoder" if old else "encoder") + ".lm_head"
    found |= linear(f"{head}.dense", DIM, DIM) | norm(f"{head}.layer_norm")
    words = found[f"{stack}embed_tokens.weight"]
    found |= {
        f"{head}.weight": words if tied else random(WORDS, DIM),
        f"{head}.bias": random(WORDS),
    }
    return found


def fairseq_logits(tensors, tokens, *, heads=4, pre=False):
    """What linformer_roberta computes of unpadded tokens, written from its description.

    The input of W_k and W_v is compressed, their biases are added afterwards.
    """
    at = {name.replace("decoder.", "encoder.", 1): each for name, each in tensors.items()}
    at = {name.replace("emb_layer_norm", "layernorm_embedding"): each for name, each in at.items()}

    def linear(name, x):
        return x @ at[f"{name}.weight"].T + at[f"{name}.bias"]

    def norm(name, x):
        return F.layer_norm(x, x.shape[-1:], at[f"{name}.weight"], at[f"{name}.bias"])

    def attention(name, x):
        length, size = x.shape[1], DIM // heads
        key_e = at[f"{name}.compress_k.weight"][:, :length]
        value_e = at.get(f"{name}.compress_v.weight", at[f"{name}.compress_k.weight"])[:, :length]
        q, k, v = (
            linear(f"{name}.{each}_proj", rows).unflatten(-1, (heads, size))
            for each, rows in (("q", x), ("k", key_e @ x), ("v", value_e @ x))
        )
        scores = torch.einsum("bnhd,bkhd->bhnk", q, k) / math.sqrt(size)
        mixed = torch.einsum("bhnk,bkhd->bnhd", scores.softmax(-1), v).flatten(2)
        return linear(f"{name}.out_proj", mixed)

    stack = "encoder.sentence_encoder."
    places = at[f"{stack}embed_positions.weight"][2 : 2 + tokens.shape[1]]
    x = norm(f"{stack}layernorm_embedding", at[f"{stack}embed_tokens.weight"][tokens] + places)

    for i in range(2):
        layer = f"{stack}layers.{i}."

        def fed(x, layer=layer):
            return linear(f"{layer}fc2", F.gelu(linear(f"{layer}fc1", x)))

        first, second = f"{layer}self_attn_layer_norm", f"{layer}final_layer_norm"
        if pre:
            x = x + attention(f"{layer}self_attn", norm(first, x))
            x = x + fed(norm(second, x))
        else:
            x = norm(first, x + attention(f"{layer}self_attn", x))
            x = norm(second, x + fed(x))
    x = norm(f"{stack}layer_norm", x) if pre else x
    x = norm("encoder.lm_head.layer_norm", F.gelu(linear("encoder.lm_head.dense", x)))
    return linear("encoder.lm_head", x)


FAIRSEQ = [
    {},
    {"shared_kv": True},
    {"shared_layer": True},
    {"shared_layer": True, "shared_kv": True},
    {"tied": False},
    {"pre": True},
    {"old": True},
]


@torch.no_grad()
@pytest.mark.parametrize("options", FAIRSEQ, ids=str)
def test_fairseq_is_equal_over_its_options_and_back(options):
    tensors = fairseq_tensors(**options)
    pre = options.get("pre", False)
    ours = from_fairseq({"model": tensors, "args": argparse.Namespace(encoder_attention_heads=4)})
    for length in (N, 7):
        close(ours(ids(length)).logits, fairseq_logits(tensors, ids(length), pre=pre))
    attention = ours.linformer.encoder.layers[0].attention
    sharing = "kv" if "shared_kv" in options else "headwise"
    assert attention.sharing == ("layerwise" if "shared_layer" in options else sharing)
    assert ours.config.pad_token_id == 1
    assert ours.config.tie_word_embeddings == options.get("tied", True)
    arguments, back = to_fairseq(ours)
    assert arguments["compressed"] == 3
    assert arguments["encoder_normalize_before"] == pre
    close(fairseq_logits(back, ids(), pre=pre), fairseq_logits(tensors, ids(), pre=pre))


def test_options_of_fairseq_are_found_in_args_and_cfg():
    tensors = fairseq_tensors()
    model = argparse.Namespace(encoder_attention_heads=2, activation_fn="gelu_accurate")
    for options in ({"args": model}, {"cfg": {"model": model}}, {"cfg": {"model": vars(model)}}):
        config = from_fairseq({"model": tensors, **options}).config
        assert (config.num_attention_heads, config.hidden_act) == (2, "gelu_tanh")
    assert from_fairseq(tensors, heads=8).config.num_attention_heads == 8
    with pytest.raises(UserError, match=r"got None\. Pass the encoder_attention_heads"):
        from_fairseq(tensors)
    relu = argparse.Namespace(encoder_attention_heads=2, activation_fn="relu")
    with pytest.raises(UserError, match="activation_fn='relu'"):
        from_fairseq({"model": tensors, "args": relu})


def test_a_fairseq_checkpoint_without_head_is_a_model():
    tensors = {n: t for n, t in fairseq_tensors().items() if "lm_head" not in n}
    assert isinstance(from_fairseq(tensors, heads=4), LinformerModel)


def test_classification_heads_of_fairseq_are_refused_by_name():
    extra = {"classification_heads.imdb.dense.weight": torch.zeros(2, 2)}
    with pytest.raises(UserError, match="classification_heads"):
        from_fairseq(fairseq_tensors() | extra, heads=4)


def test_a_bias_before_e_cannot_go_to_fairseq():
    ours = from_fairseq(fairseq_tensors(), heads=4)
    torch.nn.init.ones_(ours.linformer.encoder.layers[1].attention.v_proj.bias)
    with pytest.raises(UserError, match=r"no place for encoder.layers.1.attention.v_proj.bias"):
        to_fairseq(ours)


@torch.no_grad()
@pytest.mark.parametrize("qkv_bias", [False, True])
def test_a_model_of_ours_can_go_to_fairseq(qkv_bias):
    sizes = {"vocab_size": WORDS, "hidden_size": DIM, "num_hidden_layers": 2, "k": 4}
    sizes |= {"num_attention_heads": 4, "intermediate_size": 24, "max_position_embeddings": N}
    options = {"type_vocab_size": 0, "keep_scale": False, "norm": "post", "qkv_bias": qkv_bias}
    ours = randomized(LinformerForMaskedLM(LinformerConfig(**sizes, **options, pad_token_id=1)))
    for layer in ours.linformer.encoder.layers if qkv_bias else ():
        torch.nn.init.zeros_(layer.attention.k_proj.bias)
        torch.nn.init.zeros_(layer.attention.v_proj.bias)
    close(fairseq_logits(to_fairseq(ours)[1], ids()), ours(ids()).logits)


def test_without_a_final_norm_a_model_cannot_go_to_fairseq():
    sizes = {"vocab_size": WORDS, "hidden_size": DIM, "num_hidden_layers": 1, "k": 4}
    sizes |= {"num_attention_heads": 4, "intermediate_size": 24, "max_position_embeddings": N}
    options = {"type_vocab_size": 0, "keep_scale": False, "final_norm": False}
    with pytest.raises(UserError, match="final_norm=True: got False"):
        to_fairseq(LinformerForMaskedLM(LinformerConfig(**sizes, **options)))
    encoder = LinformerEncoder(dim=DIM, depth=1, num_heads=4, max_length=N, k=4)
    with pytest.raises(UserError, match="got LinformerEncoder"):
        to_fairseq(encoder)


# --- files


@torch.no_grad()
@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_a_converted_file_can_be_saved_and_loaded(lucid, tatp, tmp_path, suffix):
    from safetensors.torch import save_file

    one = randomized(lucid.Linformer(DIM, N, 2, k=3, heads=4))
    two = randomized(tatp.LinformerLM(WORDS, N, DIM, dim_k=4))
    cases = {
        "linformer": (one.state_dict(), {"heads": 4}, {"inputs_embeds": rows()}, one(rows())),
        "linformer-pytorch": (two.state_dict(), {}, {"input_ids": ids()}, two(ids())),
    }
    three = fairseq_tensors()
    cases["fairseq"] = (three, {"heads": 4}, {"input_ids": ids()}, fairseq_logits(three, ids()))
    for source, (tensors, options, inputs, expected) in cases.items():
        path = tmp_path / f"{source}.{suffix}"
        if suffix == "pt":
            torch.save({"state_dict": tensors, "epoch": 3}, path)
        else:
            save_file({name: each.clone() for name, each in tensors.items()}, path)
        model = convert_file(path, source=source, **options)
        model.save_pretrained(tmp_path / source)
        loaded = type(model).from_pretrained(tmp_path / source)
        close(loaded(**inputs)[0], expected)


def test_a_fairseq_file_with_its_arguments_is_read(tmp_path):
    saved = {"model": fairseq_tensors(), "args": argparse.Namespace(encoder_attention_heads=4)}
    torch.save(saved, tmp_path / "checkpoint.pt")
    model = convert_file(tmp_path / "checkpoint.pt", source="fairseq")
    assert model.config.num_attention_heads == 4


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("place", ["tensor", "args", "plain pickle"])
def test_a_pickle_with_code_is_refused_and_not_run(tmp_path, place):
    code = Hostile(tmp_path / "ran")
    path = tmp_path / "checkpoint.pt"
    if place == "plain pickle":
        path.write_bytes(pickle.dumps({"model": code}))
    else:
        torch.save(
            {"model": {"a": code}, "args": None}
            if place == "tensor"
            else {"model": fairseq_tensors(), "args": argparse.Namespace(x=code)},
            path,
        )
    with pytest.raises(UserError, match=r"cannot read the checkpoint .*state_dict\(\)"):
        convert_file(path, source="fairseq")
    assert not (tmp_path / "ran").exists()


def test_files_that_are_no_checkpoints_are_refused(lucid, tmp_path):
    with pytest.raises(UserError, match="No such file"):
        convert_file(tmp_path / "none.pt", source="linformer")
    (tmp_path / "text.pt").write_text("text")
    with pytest.raises(UserError, match="cannot read the checkpoint"):
        convert_file(tmp_path / "text.pt", source="linformer")
    torch.save([1], tmp_path / "list.pt")
    with pytest.raises(UserError, match="must hold a dictionary"):
        convert_file(tmp_path / "list.pt", source="linformer")
    with pytest.raises(UserError, match="source must be one of linformer, linformer-pytorch"):
        convert_file(tmp_path / "list.pt", source="keras")
    with pytest.raises(UserError, match="takes the options heads, prefix: got activation"):
        convert_file(tmp_path / "list.pt", source="linformer", activation="relu")
    attention = lucid.LinformerSelfAttention(DIM, N, k=3, heads=4)
    torch.save(attention.state_dict(), tmp_path / "attention.pt")
    with pytest.raises(UserError, match="one attention layer"):
        convert_file(tmp_path / "attention.pt", source="linformer", heads=4)


# --- the options that the models gained for this


@pytest.mark.parametrize("sharing", ["none", "headwise", "kv", "layerwise"])
@pytest.mark.parametrize("window", [0, 2])
@torch.no_grad()
def test_a_projection_bias_is_added_to_every_channel_of_a_row(sharing, window):
    sizes = {"dim": DIM, "num_heads": 4, "max_length": N, "k": 3, "sharing": sharing}
    layer = randomized(LinformerAttention(**sizes, window=window, projection_bias=True))
    if window:  # rows of the input and rows of the keys are two paths
        outputs = []
        for shorten in ("input", "keys"):
            layer.plan = Plan(shorten=shorten, attend="fused")
            outputs.append(layer(rows()))
        close(*outputs)
        return
    bias = layer.projection.bias  # (P, T, k)
    plain = LinformerAttention(**sizes).eval()
    plain.load_state_dict({n: t for n, t in layer.state_dict().items() if n != "projection.bias"})
    with_bias, without = (each.compress(rows(), fold=False) for each in (layer, plain))
    close(with_bias.key, without.key + bias[0, ..., None])
    close(with_bias.value, without.value + bias[-1, ..., None])


@pytest.mark.parametrize("sharing", ["none", "layerwise"])
def test_parameters_are_counted_with_a_projection_bias_and_without_a_final_norm(sharing):
    sizes = {"dim": DIM, "depth": 2, "num_heads": 4, "max_length": N, "k": 3, "sharing": sharing}
    encoder = LinformerEncoder(**sizes, projection_bias=True, final_norm=False)
    counted = encoder_parameters(encoder.shape(batch=1, length=N))
    assert counted == sum(parameter.numel() for parameter in encoder.parameters())


def test_options_of_encoders_are_refused_in_causal_models():
    for options in ({"final_norm": False}, {"projection_bias": True}):
        with pytest.raises(ValueError, match="are for encoders"):
            LinformerConfig(is_decoder=True, **options)
    with pytest.raises(ValueError, match="only projection='linear' has a bias"):
        LinformerConfig(projection="mean", projection_bias=True)
    with pytest.raises(ValueError, match="tie_word_embeddings=False"):
        LinformerConfig(embedding_size=8, lm_transform=False)
