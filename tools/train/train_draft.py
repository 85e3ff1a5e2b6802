"""Distils models/mini-qwen3-draft from models/mini-qwen3 on one GPU: a model that guesses what the larger one will say.

    python train_draft.py train --seconds 105 --out draft.pt
    python train_draft.py export --weights draft.pt --out DIR

The draft learns the distribution of the larger model (KL divergence) on the same generated documents and not the text
itself: a draft is accepted when both draw the same token with the same noise. `--seconds` counts from the start of the
program, compilation included. `export` writes the format of transformers, on any machine.
"""
import argparse
import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import generate
import train
from model import Config, Qwen3, export

# 1.08 M parameters: 2.2 MB in bfloat16, three quarters of them embeddings. Two layers are the fewest that copy what stood
# behind an earlier occurrence of a token.
DRAFT = Config(hidden_size=96, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=32, intermediate_size=384)


def load_target(directory, device):
    from safetensors.torch import load_file
    weights = {}
    for path in sorted(directory.glob("*.safetensors")):
        weights |= load_file(path)
    model = Qwen3(Config())
    model.load_state_dict({name.removeprefix("model."): weight.float() for name, weight in weights.items() if name != "lm_head.weight"})
    return model.to(device).requires_grad_(False)


def divergence(draft, target, token_ids, positions, cu_seqlens, loss_idx):
    """Of each target: KL(target || draft), and the chance that one noise gives both models the same token, at least."""
    with torch.no_grad():
        wanted = F.log_softmax(target.logits(token_ids, positions, cu_seqlens, loss_idx).float(), dim=-1)
    guess = F.log_softmax(draft.logits(token_ids, positions, cu_seqlens, loss_idx).float(), dim=-1)
    overlap = torch.minimum(wanted, guess.detach()).exp().sum(-1)
    return (wanted.exp() * (wanted - guess)).sum(-1), overlap / (2 - overlap)


def run_training(args, program_start):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    target = load_target(generate.MODEL_DIR, device)
    draft = Qwen3(DRAFT).to(device)
    muon, adam = train.optimisers(draft)
    divergence_of = torch.compile(divergence, disable=device == "cpu", dynamic=False)
    maker = generate.BatchMaker(generate.MODEL_DIR / "tokenizer.json", args.tokens_per_batch, args.seed)
    loader = torch.utils.data.DataLoader(train.Batches(maker), batch_size=None, num_workers=args.workers,
                                         prefetch_factor=6 if args.workers else None, pin_memory=device == "cuda")
    print(f"{sum(param.numel() for param in draft.parameters())} parameters on {device}", flush=True)

    training_start, warm_up_s = time.time(), 0.0
    for step, batch in enumerate(loader):
        if step == 5:  # compiled and warm
            training_start = time.time()
            warm_up_s = training_start - program_start
        progress = (time.time() - training_start) / max(1.0, args.seconds - warm_up_s) if step >= 5 else 0.0
        if progress >= 1 or (args.steps and step == args.steps):
            break
        batch = {name: array.to(device, non_blocking=True) for name, array in batch.items()}
        losses, overlaps = divergence_of(draft, target, batch["token_ids"], batch["positions"], batch["cu_seqlens"], batch["loss_idx"])
        loss = (losses * batch["weights"]).sum() / batch["weights"].sum()
        loss.backward()
        scale = train.lr_scale(step, progress)
        muon.step(train.MUON_LR * scale)
        for group in adam.param_groups:
            group["lr"] = 2 * train.ADAM_LR * scale
        adam.step()
        for param in draft.parameters():
            param.grad = None
        if step % 100 == 0 or step < 3:
            print(f"agreement at step {step}:", flush=True)
            train.report(step, progress, time.time() - training_start, overlaps.detach(), batch, args.tokens_per_batch)
    summary = {"steps": step, "tokens": step * args.tokens_per_batch, "seconds": round(time.time() - training_start),
               "warm_up_seconds": round(warm_up_s), "loss": round(loss.item(), 4), "mix": generate.MIX, "seed": args.seed}
    torch.save({name: weight.to("cpu", torch.bfloat16) for name, weight in draft.state_dict().items()}, args.out)
    print(json.dumps(summary), flush=True)


def main():
    program_start = time.time()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("train", "export"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--seconds", type=float, default=105)
    parser.add_argument("--steps", type=int, default=0, help="stop after so many")
    parser.add_argument("--tokens-per-batch", type=int, default=65536)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seed", type=int, default=2)
    args = parser.parse_args()
    if args.command == "train":
        return run_training(args, program_start)
    draft = Qwen3(DRAFT)
    draft.load_state_dict({name: weight.float() for name, weight in torch.load(args.weights).items()})
    args.out.mkdir(parents=True, exist_ok=True)
    export(draft, generate.MODEL_DIR, args.out)


if __name__ == "__main__":
    main()
