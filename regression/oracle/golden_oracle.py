#!/usr/bin/env python3
"""A second opinion on the golden curves: trains the tiny models in float64 with plain PyTorch and compares.

Shares no code with the program or with the libraries the goldens were made with (see ../README.md): the models are
written out below, the weights come from each folder's model.safetensors, the order of samples is numpy's, AdamW and
clipping are written out. Needs torch, numpy and safetensors; the test suite does not.

    golden_oracle.py [gpt2-tiny llama-tiny qwen3-tiny]      prints the largest differences from golden.json
    golden_oracle.py --write FOLDER CASE…                   writes FOLDER/CASE.json in the form of golden.json
"""
import json
import math
import sys
import tomllib
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

GOLDENS = Path(__file__).resolve().parent.parent / "goldens"


def read_dataset(prefix):
    """Tokens and sequence lengths of a Megatron .bin/.idx pair (u16)."""
    idx = prefix.with_suffix(".idx").read_bytes()
    assert idx[:9] == b"MMIDIDX\0\0" and idx[17] == 8
    sequences = int.from_bytes(idx[18:26], "little")
    return np.fromfile(prefix.with_suffix(".bin"), dtype=np.uint16), np.frombuffer(idx, dtype="<i4", count=sequences, offset=34)


def samples(prefix, count, length, seed, split):
    """Rows of length + 1 tokens for one epoch: documents of the first part of the split, shuffled; samples, shuffled."""
    tokens, lengths = read_dataset(prefix)
    parts = np.array([float(x) for x in split.split(",")])
    documents = np.arange(int(round(parts[0] / parts.sum() * len(lengths))), dtype=np.int32)
    random = np.random.RandomState(seed)
    random.shuffle(documents)
    starts = np.concatenate([[0], np.cumsum(lengths.astype(np.int64))])
    stream = np.concatenate([tokens[starts[d]:starts[d + 1]] for d in documents])
    order = np.arange((len(stream) - 1) // length)
    assert count <= len(order), "the goldens stay within one epoch"
    random.shuffle(order)
    return np.stack([stream[i * length:i * length + length + 1] for i in order[:count]]).astype(np.int64)


def layer_norm(x, gain, bias, eps):
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred ** 2).mean(-1, keepdim=True) + eps) * gain + bias


def rms_norm(x, gain, eps):
    return x / torch.sqrt((x ** 2).mean(-1, keepdim=True) + eps) * gain


def attention(q, k, v):
    """Causal, [batch, heads, length, width]; fewer key/value heads serve groups of query heads."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return torch.softmax(scores.masked_fill(hidden, float("-inf")), -1) @ v


def heads(x, count):
    return x.view(*x.shape[:2], count, -1).transpose(1, 2)


def merge(x):
    return x.transpose(1, 2).flatten(2)


def gpt2(w, c, ids):
    x = w["transformer.wte.weight"][ids] + w["transformer.wpe.weight"][:ids.shape[1]]
    eps = c["layer_norm_epsilon"]
    for layer in range(c["n_layer"]):
        p = {k.split(f"h.{layer}.", 1)[1]: t for k, t in w.items() if f".h.{layer}." in k}
        n = layer_norm(x, p["ln_1.weight"], p["ln_1.bias"], eps)
        q, k, v = (n @ p["attn.c_attn.weight"] + p["attn.c_attn.bias"]).chunk(3, -1)
        o = attention(*(heads(t, c["n_head"]) for t in (q, k, v)))
        x = x + merge(o) @ p["attn.c_proj.weight"] + p["attn.c_proj.bias"]
        n = layer_norm(x, p["ln_2.weight"], p["ln_2.bias"], eps)
        h = n @ p["mlp.c_fc.weight"] + p["mlp.c_fc.bias"]
        h = 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h ** 3)))
        x = x + h @ p["mlp.c_proj.weight"] + p["mlp.c_proj.bias"]
    x = layer_norm(x, w["transformer.ln_f.weight"], w["transformer.ln_f.bias"], eps)
    return x @ w["transformer.wte.weight"].T


def rotate(x, theta):
    """Halves: dims i and i + width / 2 are a pair."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * theta ** (-torch.arange(half, dtype=x.dtype) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def llama(w, c, ids):
    x = w["model.embed_tokens.weight"][ids]
    eps, theta = c["rms_norm_eps"], c["rope_parameters"]["rope_theta"]
    for layer in range(c["num_hidden_layers"]):
        p = {k.split(f"layers.{layer}.", 1)[1]: t for k, t in w.items() if f".layers.{layer}." in k}
        n = rms_norm(x, p["input_layernorm.weight"], eps)
        q = heads(n @ p["self_attn.q_proj.weight"].T, c["num_attention_heads"])
        k, v = (heads(n @ p[f"self_attn.{t}_proj.weight"].T, c["num_key_value_heads"]) for t in "kv")
        if "self_attn.q_norm.weight" in p:
            q, k = rms_norm(q, p["self_attn.q_norm.weight"], eps), rms_norm(k, p["self_attn.k_norm.weight"], eps)
        x = x + merge(attention(rotate(q, theta), rotate(k, theta), v)) @ p["self_attn.o_proj.weight"].T
        n = rms_norm(x, p["post_attention_layernorm.weight"], eps)
        gate = n @ p["mlp.gate_proj.weight"].T
        x = x + (gate * torch.sigmoid(gate) * (n @ p["mlp.up_proj.weight"].T)) @ p["mlp.down_proj.weight"].T
    x = rms_norm(x, w["model.norm.weight"], eps)
    return x @ w["model.embed_tokens.weight" if c["tie_word_embeddings"] else "lm_head.weight"].T


def learning_rate(o, step):
    if step <= o["warmup_steps"]:
        return o["lr"] * step / o["warmup_steps"]
    p = min(1.0, (step - o["warmup_steps"]) / (o["decay_steps"] - o["warmup_steps"]))
    return o["min_lr"] + (o["lr"] - o["min_lr"]) * (1 + math.cos(math.pi * p)) / 2


def train(case):
    folder = GOLDENS / case
    deck, config = tomllib.loads((folder / "deck.toml").read_text()), json.loads((folder / "config.json").read_text())
    steps, batch, o = deck["run"]["steps"], deck["batch"]["global"], deck["optimizer"]
    rows = samples(GOLDENS / "data" / "kjv", steps * batch, deck["data"]["sequence"], deck["run"]["seed"], deck["data"]["split"])
    weights = {k: t.double().requires_grad_() for k, t in load_file(folder / "model.safetensors").items() if k != "lm_head.weight" or not config["tie_word_embeddings"]}
    forward = gpt2 if deck["model"]["family"] == "gpt2" else llama
    state = {k: (torch.zeros_like(t), torch.zeros_like(t)) for k, t in weights.items()}
    (b1, b2), curve = o["betas"], []
    for step in range(1, steps + 1):
        x = torch.from_numpy(rows[(step - 1) * batch:step * batch])
        logits = forward(weights, config, x[:, :-1])
        loss = (torch.logsumexp(logits, -1) - logits.gather(-1, x[:, 1:, None])[..., 0]).mean()
        grads = dict(zip(weights, torch.autograd.grad(loss, list(weights.values()))))
        norm = math.sqrt(sum(float((g ** 2).sum()) for g in grads.values()))
        scale, lr = min(1.0, o["clip"] / (norm + 1e-6)), learning_rate(o, step)
        with torch.no_grad():
            for name, p in weights.items():
                g, (m, v) = grads[name] * scale, state[name]
                if p.dim() > 1:
                    p.mul_(1 - lr * o["weight_decay"])
                m.mul_(b1).add_(g, alpha=1 - b1)
                v.mul_(b2).add_(g * g, alpha=1 - b2)
                p.sub_(lr * (m / (1 - b1 ** step)) / ((v / (1 - b2 ** step)).sqrt() + o["eps"]))
        curve.append(dict(step=step, lr=lr, loss=loss.item(), grad_norm=norm))
    return curve


def main():
    arguments, target = sys.argv[1:], None
    if arguments[:1] == ["--write"]:
        target, arguments = Path(arguments[1]), arguments[2:]
    for case in arguments or ["gpt2-tiny", "llama-tiny", "qwen3-tiny"]:
        curve = train(case)
        if target:
            (target / f"{case}.json").write_text(json.dumps(dict(case=case, curve=curve), indent=1) + "\n")
        gold = json.loads((GOLDENS / case / "golden.json").read_text())["curve"]
        loss = max(abs(a["loss"] - b["loss"]) for a, b in zip(curve, gold, strict=True))
        norm = max(abs(a["grad_norm"] - b["grad_norm"]) / b["grad_norm"] for a, b in zip(curve, gold))
        print(f"{case}: largest difference from golden.json: loss {loss:.1e}, gradient norm {norm:.1e} relative")
        if not (loss <= 5e-6 and norm <= 1e-3):
            sys.exit(1)


if __name__ == "__main__":
    main()
