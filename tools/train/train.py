"""Trains a model on one GPU for a given time and writes it in the format of transformers.

    python train.py --model mini-qwen3 --seconds 485 --out DIR

Worker processes make the data while the GPU trains. Matrices learn with Muon, embeddings and norms with AdamW.
The learning rate is warmed up over steps and then follows the clock: constant, then linearly down to zero at the
end of the time.
"""
import argparse
import json
import math
import time
from pathlib import Path

import torch

import generate
import moe
from model import Config, Qwen3, export

MODELS = {"mini-qwen3": lambda: Qwen3(Config()), "mini-ernie": lambda: moe.Ernie(moe.ErnieConfig()),
          "mini-deepseek": lambda: moe.DeepSeek(moe.DeepSeekConfig())}

WARMUP_STEPS = 200
DECAY_FROM = 0.4         # share of the time after which the learning rate falls
MUON_LR, MUON_MOMENTUM, MUON_WEIGHT_DECAY = 0.02, 0.95, 0.05
ADAM_LR, ADAM_BETAS = 3e-3, (0.9, 0.98)


class Batches(torch.utils.data.IterableDataset):
    """Batches 0, 1, ... in order; worker w of n makes every n-th."""

    def __init__(self, maker):
        self.maker = maker

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        batch_idx = worker.id if worker else 0
        while True:
            yield {name: torch.from_numpy(array) for name, array in self.maker.batch(batch_idx).items()}
            batch_idx += worker.num_workers if worker else 1


def orthogonalise(updates):
    """The nearest orthogonal matrix to each of updates [count, rows, cols], by five Newton-Schulz steps.

    The coefficients are those of Keller Jordan's Muon: singular values end between about 0.7 and 1.2.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = updates.bfloat16()
    tall = x.size(1) > x.size(2)
    x = x.mT if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon:
    """Momentum whose update is made orthogonal; matrices of one shape are handled together, each of a stack by itself."""

    def __init__(self, params):
        shapes = {}
        for param in params:
            shapes.setdefault(param.shape, []).append(param)
        self.groups = [(group, torch.zeros(len(group) * shape[:-2].numel(), *shape[-2:], device=group[0].device))
                       for shape, group in shapes.items()]
        torch._dynamo.config.recompile_limit = max(8, len(shapes))  # direction() is compiled for each shape
        self.direction = torch.compile(self.direction, disable=not torch.cuda.is_available(), dynamic=False)

    @staticmethod
    def direction(grads, momentum):
        momentum.lerp_(grads, 1 - MUON_MOMENTUM)
        update = orthogonalise(grads.lerp(momentum, MUON_MOMENTUM))  # Nesterov: a look ahead
        return update * max(1, update.size(1) / update.size(2)) ** 0.5

    @torch.no_grad()
    def step(self, lr):
        for params, momentum in self.groups:
            grads = torch.stack([param.grad for param in params])
            update = self.direction(grads.view_as(momentum), momentum).float().view_as(grads)
            torch._foreach_mul_(params, 1 - lr * MUON_WEIGHT_DECAY)
            torch._foreach_add_(params, list(update.unbind()), alpha=-lr)


def optimisers(model):
    """Muon for matrices, AdamW for what is looked up, norms and routers."""
    is_matrix = {name: param.ndim >= 2 and not name.endswith(("embed_tokens.weight", ".router")) for name, param in model.named_parameters()}
    muon = Muon([param for name, param in model.named_parameters() if is_matrix[name]])
    others = [param for name, param in model.named_parameters() if not is_matrix[name]]
    return muon, torch.optim.AdamW(others, lr=0.0, betas=ADAM_BETAS, weight_decay=0.0, fused=torch.cuda.is_available())


def lr_scale(step, progress):
    return min(1.0, (step + 1) / WARMUP_STEPS) * min(1.0, (1 - progress) / (1 - DECAY_FROM))


def main():
    program_start = time.time()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", choices=MODELS, default="mini-qwen3")
    parser.add_argument("--seconds", type=float, default=485, help="from the start of the program, compilation included")
    parser.add_argument("--steps", type=int, default=0, help="stop after so many")
    parser.add_argument("--lr-scale", type=float, default=1.0, help="times both learning rates")
    parser.add_argument("--tokens-per-batch", type=int, default=131072)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    model = MODELS[args.model]().to(device)
    muon, adam = optimisers(model)
    losses_of = torch.compile(model, disable=device == "cpu", dynamic=False)

    maker = generate.BatchMaker(generate.MODEL_DIR / "tokenizer.json", args.tokens_per_batch, args.seed)
    loader = torch.utils.data.DataLoader(Batches(maker), batch_size=None, num_workers=args.workers,
                                         prefetch_factor=6 if args.workers else None, pin_memory=device == "cuda")
    print(f"{sum(param.numel() for param in model.parameters())} parameters on {device}", flush=True)

    started, warm_up_s = program_start, 0.0
    for step, batch in enumerate(loader):
        if step == 5:  # compiled and warm: the clock starts
            started, warm_up_s = time.time(), time.time() - program_start
        progress = (time.time() - started) / max(1.0, args.seconds - warm_up_s) if step >= 5 else 0.0
        if progress >= 1 or (args.steps and step == args.steps):
            break
        batch = {name: array.to(device, non_blocking=True) for name, array in batch.items()}
        losses, mtp_losses = losses_of(batch["token_ids"], batch["positions"], batch["cu_seqlens"], batch["loss_idx"], batch["targets"])
        loss = (losses * batch["weights"]).sum() / batch["weights"].sum()
        mtp_loss = 0.0 if mtp_losses is None else (mtp_losses * batch["weights"]).sum() / batch["weights"].sum()
        (loss + moe.MTP_LOSS_WEIGHT * mtp_loss).backward()
        scale = args.lr_scale * lr_scale(step, progress)
        muon.step(MUON_LR * scale)
        for group in adam.param_groups:
            group["lr"] = ADAM_LR * scale
        adam.step()
        model.after_step()
        for param in model.parameters():
            param.grad = None
        if step % 200 == 0 or step < 3:
            report(step, progress, time.time() - started, losses.detach(), batch, args.tokens_per_batch)
            moe.report_load(model, float(mtp_loss))
    seconds = time.time() - started
    summary = {"model": args.model, "steps": step, "tokens": step * args.tokens_per_batch, "seconds": round(seconds), "warm_up_seconds": round(warm_up_s),
               "loss": round(loss.item(), 4), "mtp_loss": round(float(mtp_loss), 4), "mix": generate.MIX, "seed": args.seed}
    args.out.mkdir(parents=True, exist_ok=True)
    export(model, generate.MODEL_DIR, args.out)
    (args.out / "train.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(json.dumps(summary), flush=True)


def report(step, progress, seconds, losses, batch, tokens_per_batch):
    """Prints the mean loss of each skill in this batch."""
    counted = (batch["weights"] > 0).float()
    sums = torch.zeros(len(generate.MIX), device=losses.device).index_add_(0, batch["skill_ids"], losses * counted)
    counts = torch.zeros(len(generate.MIX), device=losses.device).index_add_(0, batch["skill_ids"], counted)
    means = (sums / counts.clamp(min=1)).tolist()
    if not all(map(math.isfinite, means)):
        raise SystemExit(f"train: the loss at step {step} is not finite: {means}")
    print(f"step {step} {progress:.3f} {step * tokens_per_batch / max(seconds, 1e-3) / 1e6:.2f} Mtok/s  "
          + " ".join(f"{skill} {mean:.4f}" for skill, mean in zip(generate.MIX, means)), flush=True)


if __name__ == "__main__":
    main()
