#!/usr/bin/env python3
"""Times training steps of GPT-2 (124M) in PyTorch, to set beside `orthant bench step`.

The same work as a step of input/gpt2-124m.toml: 12 layers of width 768 with 12 heads, a tied vocabulary of 50257,
learned positions, 4 sequences of 1024 random tokens, no dropout; forward, backward, clipping at norm 1, AdamW. Prints
one CSV row a mode:

    program,mode,threads,sequences,length,steps,seconds_per_step,tokens_per_s

seconds_per_step is the median over the timed steps. Modes: fp32 (eager), bf16 (autocast, eager) and bf16-compile
(autocast under torch.compile). On a machine without bf16 instructions PyTorch emulates them, and is slow.
"""
import argparse
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """Pre-norm block: attention, then a GELU network four times as wide."""

    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.norm_mlp = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        batch, length, hidden = x.shape
        q, k, v = self.qkv(self.norm_attention(x)).chunk(3, dim=-1)
        q, k, v = (t.view(batch, length, self.heads, hidden // self.heads).transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, hidden))
        return x + self.down(F.gelu(self.up(self.norm_mlp(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self, vocab, context, hidden, heads, layers):
        super().__init__()
        self.tokens = nn.Embedding(vocab, hidden)
        self.positions = nn.Embedding(context, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)  # the head is the embedding
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def optimizer_of(model):
    """Decay on matrices only, as Orthant does; the fused update is PyTorch's fastest on a CPU."""
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)


def seconds_per_step(mode, options):
    torch.manual_seed(1234)
    model = Model(options.vocab, options.length, options.hidden, options.heads, options.layers)
    optimizer = optimizer_of(model)
    step_model = torch.compile(model) if mode == "bf16-compile" else model
    taken = []
    for step in range(options.warmup + options.steps):
        row = torch.randint(options.vocab, (options.sequences, options.length + 1))
        started = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mode != "fp32"):
            loss = step_model(row[:, :-1], row[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step >= options.warmup:
            taken.append(time.perf_counter() - started)
    if not torch.isfinite(loss):
        sys.exit(f"the loss of mode {mode} is {loss.item()}: these times mean nothing")
    return statistics.median(taken)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", action="append", choices=["fp32", "bf16", "bf16-compile"],
                        help="may be repeated; default: all")
    parser.add_argument("--steps", type=int, default=5, help="timed steps")
    parser.add_argument("--warmup", type=int, default=2, help="steps before them")
    parser.add_argument("--threads", type=int, default=0, help="0 = OMP_NUM_THREADS, else all cores")
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--vocab", type=int, default=50257)
    parser.add_argument("--no-header", action="store_true")
    options = parser.parse_args()
    if options.threads > 0:
        torch.set_num_threads(options.threads)
    if not options.no_header:
        print("program,mode,threads,sequences,length,steps,seconds_per_step,tokens_per_s")
    for mode in options.mode or ["fp32", "bf16", "bf16-compile"]:
        seconds = seconds_per_step(mode, options)
        rate = options.sequences * options.length / seconds
        print(f"pytorch-{torch.__version__},{mode},{torch.get_num_threads()},{options.sequences},{options.length},"
              f"{options.steps},{seconds:.4f},{rate:.1f}", flush=True)


if __name__ == "__main__":
    main()
