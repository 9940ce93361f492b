"""What every class owes its users, after the ideas of transformers' own model tests."""

from __future__ import annotations

import inspect

import pytest
import torch
from safetensors import safe_open
from torch.testing import assert_close
from transformers import AutoConfig
from transformers import initialization as init

from linformer_kit.core.projection_kinds import PROJECTIONS
from linformer_kit.models import LinformerConfig

from .cases import CASES, CAUSAL, LANGUAGE_MODELS, SMALL, VOCABULARY, WITH_LOSS, call, tokens

EVERY = pytest.mark.parametrize("name", CASES)
WITH_A_LOSS = pytest.mark.parametrize("name", WITH_LOSS)


def tensors_of(output):
    return {key: value for key, value in output.items() if isinstance(value, torch.Tensor)}


@EVERY
def test_the_forward_signature_begins_as_everywhere(name):
    names = list(inspect.signature(CASES[name].model.forward).parameters)
    assert names[1:3] == ["input_ids", "attention_mask"]
    if name == "LinformerForConditionalGeneration":
        assert names[3:5] == ["decoder_input_ids", "decoder_attention_mask"]
    assert "kwargs" not in names  # a typo is an error


@EVERY
@pytest.mark.parametrize("projection", PROJECTIONS)
def test_saved_and_loaded_by_the_auto_class_it_is_the_same(name, projection, tmp_path):
    case = CASES[name]
    model = case.build(projection=projection)
    model.save_pretrained(tmp_path)
    files = {path.name for path in tmp_path.iterdir()}
    assert files - {"generation_config.json"} == {"config.json", "model.safetensors"}
    config = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(config, LinformerConfig)
    loaded, info = case.auto.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is case.model
    assert not any(info.values())
    assert not loaded.training
    for key, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], tensor)
    # the last bit of a product may depend on where in memory the weights lie
    assert_close(tensors_of(call(case, loaded)), tensors_of(call(case, model)))


@EVERY
def test_a_shared_projection_is_one_tensor_before_and_after(name, tmp_path):
    case = CASES[name]
    options = {"sharing": "layerwise", "context_projection": "linear"}
    model = case.build(**options, context_sharing="layerwise")
    expected = {"LinformerForCausalLM": 0, "LinformerForConditionalGeneration": 2}.get(name, 1)

    def projections(names):
        return [n for n in names if n.endswith("projection.weight")]

    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert len(projections(file.keys())) == expected
    loaded = case.model.from_pretrained(tmp_path)
    for each in (model, loaded):
        everywhere = projections(n for n, _ in each.named_parameters(remove_duplicate=False))
        assert len(everywhere) == expected


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_are_tied_if_the_configuration_says_so(name, tied, tmp_path):
    case = CASES[name]
    model = case.build(tie_word_embeddings=tied)
    model.save_pretrained(tmp_path)
    for each in (model, case.model.from_pretrained(tmp_path)):
        table, head = each.get_input_embeddings().weight, each.get_output_embeddings().weight
        assert (table is head) == tied
        each.tie_weights()
        assert (each.get_output_embeddings().weight is each.get_input_embeddings().weight) == tied


@EVERY
def test_a_tuple_has_what_the_output_has(name):
    case = CASES[name]
    model = case.build()
    named = [value for value in call(case, model).values() if isinstance(value, torch.Tensor)]
    assert_close(list(call(case, model, return_dict=False)), named)


@WITH_A_LOSS
def test_one_batch_can_be_learned(name):
    case = CASES[name]
    model = case.build().train()
    batch = case.inputs() | case.labels()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(40):
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.35 * losses[0]


@WITH_A_LOSS
def test_every_parameter_gets_a_gradient(name):
    case = CASES[name]
    model = case.build(feature_size=None).train()
    model(**case.inputs() | case.labels()).loss.backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


@WITH_A_LOSS
def test_gradient_checkpointing_changes_no_gradient(name):
    case = CASES[name]
    model = case.build().train()
    batch = case.inputs() | case.labels()

    def gradients():
        model.zero_grad()
        model(**batch).loss.backward()
        return {n: p.grad.clone() for n, p in model.named_parameters()}

    plain = gradients()
    model.gradient_checkpointing_enable()
    assert model.is_gradient_checkpointing
    assert_close(gradients(), plain)
    model.gradient_checkpointing_disable()
    assert not model.is_gradient_checkpointing
    with pytest.raises(ValueError, match="use_reentrant=False: got"):
        model.gradient_checkpointing_enable({"use_reentrant": True})


@EVERY
def test_hidden_states_and_attentions_are_given_on_request(name):
    case = CASES[name]
    model = case.build()
    bare = call(case, model)
    output = call(case, model, output_hidden_states=True, output_attentions=True)
    for key, tensor in tensors_of(bare).items():
        assert_close(output[key], tensor)
    batch = 6 if case.kind == "choice" else 2
    encoder, causal = (batch, 2, 20, 6), 3 + 2 * 4
    shapes = {"attentions": [encoder] * 2, "hidden_states": [(batch, 20, 16)] * 3}
    if name == "LinformerForCausalLM":
        shapes["attentions"] = [(2, 2, 20, causal)] * 2
    elif name == "LinformerForConditionalGeneration":
        shapes = {f"encoder_{key}": shape for key, shape in shapes.items()} | {
            "decoder_attentions": [(2, 2, 9, causal)] * 2,
            "decoder_hidden_states": [(2, 9, 16)] * 3,
            "cross_attentions": [(2, 2, 9, 3)] * 2,
        }
    for key, expected in shapes.items():
        assert [tuple(t.shape) for t in output[key]] == expected
        assert key not in bare
    model.config.output_hidden_states = True
    for part in model.modules():
        if hasattr(part, "config"):
            part.config.output_hidden_states = True
    assert any("hidden_states" in key for key in call(case, model))


@EVERY
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_hidden_states_and_attentions_are_part_of_the_graph(name, padded, training):
    """As attribution methods need them: the output depends on what is returned."""
    case = CASES[name]
    model = case.build().train(training)
    given = {} if padded else {"attention_mask": None}
    output = call(case, model, output_hidden_states=True, output_attentions=True, **given)
    inside = {key: value for key, value in output.items() if isinstance(value, tuple)}
    assert inside
    for tensors in inside.values():
        for tensor in tensors:
            tensor.retain_grad()
    first = next(value for value in output.values() if isinstance(value, torch.Tensor))
    first.square().sum().backward()
    for key, tensors in inside.items():
        for tensor in tensors:
            assert tensor.grad is not None, key
            assert tensor.grad.abs().sum() > 0, key


@EVERY
def test_missing_weights_are_all_initialised(name):
    case = CASES[name]
    for projection in ("linear", "fixed", "dynamic"):
        options = {"projection": projection, "position_embedding_type": "sinusoidal"}
        config = LinformerConfig(**SMALL | options | {"hidden_size": 64})
        torch.manual_seed(0)
        new = case.model(config)
        filled = case.model.from_pretrained(None, config=config, state_dict={})
        for kind in ("named_parameters", "named_buffers"):
            expected = dict(getattr(new, kind)())
            for key, tensor in getattr(filled, kind)():
                assert tensor.device.type == "cpu"
                assert tensor.isfinite().all(), key
                size, usual = (each.square().mean().sqrt() for each in (tensor, expected[key]))
                assert_close(size, usual, rtol=0.5, atol=1e-3)


@EVERY
@pytest.mark.parametrize("projection", PROJECTIONS)
def test_initialising_again_changes_nothing_that_was_loaded(name, projection):
    """transformers calls `_init_weights` of loaded modules too, and guards torch.nn.init alone."""
    of_encoders = {} if name in CAUSAL else {"moving_average": True, "neighbours": 3}
    model = CASES[name].build(projection=projection, **of_encoders)
    tensors = [*model.parameters(), *model.buffers()]
    with torch.no_grad():
        for tensor in tensors:
            tensor._is_hf_initialized = True
            if tensor.is_floating_point():
                tensor.fill_(0.25)
    before = [tensor.clone() for tensor in tensors]
    with init.guard_torch_init_functions():
        for module in model.modules():
            model._init_weights(module)
    assert all(map(torch.equal, tensors, before))


@EVERY
def test_every_tensor_of_a_module_is_a_parameter_or_a_buffer(name):
    """What is neither stays on the meta device when a model is loaded."""
    with torch.device("meta"):
        model = CASES[name].build(projection="fixed", position_embedding_type="sinusoidal")
    for module in model.modules():
        assert not [n for n, value in vars(module).items() if isinstance(value, torch.Tensor)]


@EVERY
def test_weights_of_another_shape_are_made_anew_on_request(name, tmp_path):
    case = CASES[name]
    case.build().save_pretrained(tmp_path)
    model, info = case.model.from_pretrained(
        tmp_path, vocab_size=10, ignore_mismatched_sizes=True, output_loading_info=True
    )
    assert info["mismatched_keys"]
    ids = {"input_ids": case.inputs()["input_ids"] % 10}
    if name == "LinformerForConditionalGeneration":
        ids["decoder_input_ids"] = tokens(2, 9) % 10
    for tensor in tensors_of(model(**ids)).values():
        assert tensor.isfinite().all()


@EVERY
def test_padding_and_what_stands_in_it_change_nothing(name):
    case = CASES[name]
    model = case.build()
    inputs = case.inputs()
    # `linear` scales by what is there, so a padded sample is the shorter one
    other = inputs["input_ids"].clone()
    other[1, ..., -5:] = 7
    a, b = call(case, model), call(case, model, input_ids=other)
    for key, tensor in tensors_of(a).items():
        assert_close(b[key], tensor, rtol=0, atol=0)
    alone = {key: value[1:, ..., :-5] for key, value in inputs.items()}
    if name == "LinformerForConditionalGeneration":
        alone["decoder_input_ids"] = tokens(2, 9, seed=2)[1:]
    for key, tensor in tensors_of(model(**alone)).items():
        length = tensor.shape[1] if tensor.dim() > 1 else None
        assert_close(a[key][1:, :length], tensor)


@EVERY
def test_embedded_inputs_equal_the_tokens(name):
    case = CASES[name]
    model = case.build()
    vectors = model.get_input_embeddings()(case.inputs()["input_ids"])
    a, b = call(case, model), call(case, model, input_ids=None, inputs_embeds=vectors)
    assert_close(tensors_of(b), tensors_of(a))


@EVERY
def test_the_vanilla_transformer_is_one_argument_away(name):
    case = CASES[name]
    model = case.build(projection="full")
    assert not any("projection" in n or "slot" in n for n, _ in model.named_parameters())
    call(case, model)
    if name != "LinformerForCausalLM":  # and a Linformer that shortens nothing is that
        same = case.build(
            projection="linear",
            k=24,
            causal_attention="full",
            context_projection="full",
            keep_scale=False,
        )
        same.load_state_dict(model.state_dict(), strict=False)
        for n, weight in same.named_parameters():
            if n.endswith("projection.weight"):
                torch.nn.init.eye_(weight.data[0, 0])
        inputs = {"attention_mask": torch.ones_like(case.inputs()["attention_mask"])}
        pad = torch.nn.functional.pad(case.inputs()["input_ids"], (0, 4), value=5)
        inputs = {"input_ids": pad, "attention_mask": torch.ones_like(pad)}
        assert_close(
            tensors_of(call(case, same, **inputs)), tensors_of(call(case, model, **inputs))
        )


@EVERY
@pytest.mark.parametrize("size", [VOCABULARY + 6, VOCABULARY - 4])
def test_the_vocabulary_can_be_resized(name, size, tmp_path):
    case = CASES[name]
    model = case.build()
    old = model.get_input_embeddings().weight.detach().clone()
    model.resize_token_embeddings(size, mean_resizing=False)
    kept = min(size, VOCABULARY)
    assert_close(model.get_input_embeddings().weight[:kept], old[:kept])
    assert model.config.vocab_size == size
    few = {"input_ids": case.inputs()["input_ids"] % kept}
    if name == "LinformerForConditionalGeneration":
        few["decoder_input_ids"] = tokens(2, 9) % kept
    output = model(**few)
    if name in LANGUAGE_MODELS:
        assert output.logits.shape[-1] == size
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    model.save_pretrained(tmp_path)
    assert_close(tensors_of(case.model.from_pretrained(tmp_path)(**few)), tensors_of(output))


@EVERY
def test_the_length_can_be_resized(name, tmp_path):
    case = CASES[name]
    model = case.build(position_embedding_type="learned")
    model.resize_position_embeddings(40)
    longer = torch.ones_like(case.inputs(length=40)["input_ids"])
    output = call(case, model, input_ids=longer, attention_mask=longer)
    model.save_pretrained(tmp_path)
    loaded = case.model.from_pretrained(tmp_path)
    assert loaded.config.max_position_embeddings == 40
    again = call(case, loaded, input_ids=longer, attention_mask=longer)
    assert_close(tensors_of(again), tensors_of(output))


@EVERY
def test_bfloat16_is_near_float32(name, tmp_path):
    case = CASES[name]
    model = case.build()
    model.save_pretrained(tmp_path)
    half = case.model.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    for key, tensor in tensors_of(call(case, model)).items():
        assert_close(call(case, half)[key].float(), tensor, rtol=0.05, atol=0.1)


@EVERY
def test_new_weights_are_roberta_s_and_the_projection_is_the_core_s(name):
    case = CASES[name]
    options = {"hidden_size": 128, "intermediate_size": 256, "max_position_embeddings": 256}
    model = case.build(**options, k=64, num_slots=64, position_embedding_type="learned")
    seen = set()
    for key, weight in model.named_parameters():
        if key.endswith("bias"):
            assert weight.count_nonzero() == 0
        elif "norm" in key:
            assert torch.equal(weight, torch.ones_like(weight))
        else:
            kind = "slots" if "slot_proj" in key else key.rsplit(".", 2)[-2]
            std = {"projection": 256**-0.5, "slots": 128**-0.5}.get(kind, 0.02)
            if ".cross_attention.projection" in key:  # dynamic: a row for each of M channels
                std = 128**-0.5
            assert weight.std().item() == pytest.approx(std, rel=0.2), key
            seen.add(kind)
    assert ("slots" in seen) == (name in LANGUAGE_MODELS[1:])


def test_the_number_of_parameters_is_known_to_transformers():
    model = CASES["LinformerForMaskedLM"].build()
    counted = sum(p.numel() for p in model.parameters())  # a tied table counts once
    assert model.num_parameters() == counted
    table = SMALL["vocab_size"] * SMALL["hidden_size"]
    types = 2 * SMALL["hidden_size"]
    assert model.num_parameters(exclude_embeddings=True) == counted - table - types


@pytest.mark.parametrize(
    ("backend", "dtype", "close"),
    [
        ("aot_eager", torch.float32, {"rtol": 1e-5, "atol": 1e-6}),
        ("aot_eager", torch.bfloat16, {"rtol": 2e-2, "atol": 2e-2}),
        pytest.param(
            "inductor", torch.float32, {"rtol": 1e-4, "atol": 1e-5}, marks=pytest.mark.slow
        ),
    ],
)
@pytest.mark.parametrize("projection", ["linear", "full"])
def test_a_compiled_model_gives_the_same(projection, backend, dtype, close):
    case = CASES["LinformerModel"]
    model = case.build(projection=projection).to(dtype)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for length in (20, 13):
        inputs = case.inputs(length=length)
        assert_close(
            compiled(**inputs).last_hidden_state, model(**inputs).last_hidden_state, **close
        )
