"""Whisper with a Linformer's attention in its encoder: transcripts and time beside the original.

    python -m benchmarks.convert_speech tiny.en.pt jfk.wav --words gpt2.tiktoken

Takes a checkpoint of OpenAI's English models (tensors alone are read), recordings (wav, 16 kHz,
16 bits, one channel, at most 30 seconds) and the token list of the package openai-whisper. Decoding
is greedy. Nothing is trained. Records are appended to --out.
"""

from __future__ import annotations

import argparse
import base64
import copy
import wave
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers

from linformer_kit.convert import linformerize
from linformer_kit.convert.distillation import agreement
from linformer_kit.measure.machine import describe
from linformer_kit.measure.records import RecordFile
from linformer_kit.measure.timing import alternate, times_faster

if TYPE_CHECKING:
    from collections.abc import Iterator

RATE, FRAMES = 16_000, 1_500
START, NO_TIMES, END = 50257, 50362, 50256  # of the English models
# OpenAI's part of a name -> that of transformers, in this order.
NAMES = {
    "blocks": "layers",
    "mlp.0": "fc1",
    "mlp.2": "fc2",
    "mlp_ln": "final_layer_norm",
    "cross_attn_ln": "encoder_attn_layer_norm",
    "attn_ln": "self_attn_layer_norm",
    "cross_attn.": "encoder_attn.",
    ".attn.": ".self_attn.",
    ".query": ".q_proj",
    ".key": ".k_proj",
    ".value": ".v_proj",
    ".out.": ".out_proj.",
    "ln_post": "layer_norm",
    "decoder.ln.": "decoder.layer_norm.",
    "token_embedding": "embed_tokens",
    "positional_embedding": "embed_positions.weight",
}


def load_whisper(path: Path) -> transformers.WhisperForConditionalGeneration:
    """A model of transformers with the weights of an OpenAI checkpoint."""
    saved = torch.load(path, map_location="cpu", weights_only=True)
    sizes = saved["dims"]
    config = transformers.WhisperConfig(
        vocab_size=sizes["n_vocab"],
        num_mel_bins=sizes["n_mels"],
        d_model=sizes["n_audio_state"],
        encoder_layers=sizes["n_audio_layer"],
        encoder_attention_heads=sizes["n_audio_head"],
        decoder_layers=sizes["n_text_layer"],
        decoder_attention_heads=sizes["n_text_head"],
        encoder_ffn_dim=4 * sizes["n_audio_state"],
        decoder_ffn_dim=4 * sizes["n_text_state"],
        max_source_positions=sizes["n_audio_ctx"],
        max_target_positions=sizes["n_text_ctx"],
        decoder_start_token_id=START,
    )
    model = transformers.WhisperForConditionalGeneration(config)
    tensors = {}
    for name, tensor in saved["model_state_dict"].items():
        renamed = name
        for theirs, ours in NAMES.items():
            renamed = renamed.replace(theirs, ours)
        tensors[f"model.{renamed}"] = tensor.float()
    tensors["proj_out.weight"] = tensors["model.decoder.embed_tokens.weight"]
    model.load_state_dict(tensors)
    return model.eval()


def read_wave(path: Path) -> np.ndarray:
    """Samples from -1 to 1."""
    with wave.open(str(path)) as file:
        form = file.getframerate(), file.getsampwidth(), file.getnchannels()
        if form != (RATE, 2, 1):
            raise SystemExit(f"{path} must have 16 kHz, 16 bits, one channel: got {form}.")
        samples = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")
    return samples.astype(np.float32) / 2**15


def read_words(path: Path) -> dict[int, bytes]:
    lines = (line.split() for line in path.read_text().splitlines() if line)
    return {int(number): base64.b64decode(token) for token, number in lines}


@torch.inference_mode()
def transcribe(model: Any, features: torch.Tensor, words: dict[int, bytes]) -> str:
    """The likeliest next token each time, until the end."""
    encoded = model.model.encoder(features).last_hidden_state
    tokens = [START, NO_TIMES]
    while len(tokens) < 200:
        states = model.model.decoder(torch.tensor([tokens]), encoder_hidden_states=encoded)
        token = int(model.proj_out(states.last_hidden_state[0, -1])[: START + 1].argmax())
        if token >= END:
            break
        tokens.append(token)
    return b"".join(words[token] for token in tokens[2:]).decode(errors="replace").strip()


def word_errors(given: str, wanted: str) -> int:
    """The edit distance in words."""
    ours, theirs = given.lower().split(), wanted.lower().split()
    row = list(range(len(theirs) + 1))
    for i, word in enumerate(ours, 1):
        before, row = row, [i]
        for j, other in enumerate(theirs, 1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (word != other)))
    return row[-1]


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("recordings", type=Path, nargs="+")
    parser.add_argument("--words", type=Path, required=True)
    parser.add_argument("--settings", default="128:64,64:32,32:16", help="k:window, ...")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("convert-speech.jsonl"))
    return parser


def main() -> None:
    given = parser().parse_args()
    torch.set_num_threads(given.threads)
    original = load_whisper(given.model)
    extractor = transformers.WhisperFeatureExtractor(feature_size=original.config.num_mel_bins)
    words = read_words(given.words)
    models = {"original": original}
    for pair in given.settings.split(","):
        k, window = map(int, pair.split(":"))
        models[pair] = linformerize(
            copy.deepcopy(original), max_length=FRAMES, k=k, window=window, global_tokens=0
        )
    machine = describe(seed=0, threads=given.threads)
    with RecordFile(given.out) as file:
        for path in given.recordings:
            sound = extractor(read_wave(path), sampling_rate=RATE, return_tensors="pt")
            for found in compare(models, sound.input_features, words, given.rounds):
                line = {"bench": "convert-speech", "recording": path.name} | found
                file.append(line | {"machine": machine})
                print({**line, "seconds": None}, flush=True)


@torch.inference_mode()
def compare(
    models: dict[str, Any], features: torch.Tensor, words: dict[int, bytes], rounds: int
) -> Iterator[dict[str, Any]]:
    """Each model beside the first."""
    first = next(iter(models))
    encoders = {name: model.model.encoder for name, model in models.items()}
    states = {name: encoder(features).last_hidden_state for name, encoder in encoders.items()}
    runs = {name: partial(encoder, features) for name, encoder in encoders.items()}
    times = alternate(runs, rounds=rounds)
    wanted = transcribe(models[first], features, words)
    every = torch.ones(states[first].shape[:2])
    for name, model in models.items():
        heard = transcribe(model, features, words)
        yield {
            "setting": name,
            "transcript": heard,
            "word_errors": word_errors(heard, wanted),
            "words": len(wanted.split()),
            "token_cosine": agreement(states[name], states[first], every)["token_cosine"],
            "times_faster": times_faster(times[name], times[first]),
            **times[name].as_record(),
        }


if __name__ == "__main__":
    main()
