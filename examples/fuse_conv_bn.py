"""ResNet-18 before and after its BatchNorm is fused into the convolutions.

    python examples/fuse_conv_bn.py --runs 50 --size 224

The follow-up of the PyTorch tutorial "Building a Simple CPU Performance Profiler with FX". Where a
model only infers, BatchNorm multiplies and adds constants, which the weights of the convolution
before it can take over. ``torch.fx.experimental.optimization.fuse`` does that, and the rows of
BatchNorm are gone. Whether it is a saving, and how much, is what this prints.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch
from torch import nn
from torch.fx.experimental.optimization import fuse
from torchvision.models import resnet18

import fx_instrument

COLUMNS = ("name", "before", "after", "difference", "ratio", "verdict")

WARMUP = 3
# So few that both models meet the same machine, and more than one, as the first finds the caches
# full of the other model.
RUNS_IN_BLOCK = 2
# From so many on, compare() knows that the runs took turns.
MIN_RUNS = 10


def main(argv: Sequence[str] | None = None) -> int:
    """Compare the two models and print what was saved.

    Args:
        argv: the arguments after the name of the script; those of the process by default.

    Returns:
        0, or 1 where the two models do not give the same.
    """
    parser = argparse.ArgumentParser(description="Compare ResNet-18 with and without BatchNorm.")
    parser.add_argument(
        "--runs", metavar="N", type=int, default=50, help="runs of each model (default: 50)"
    )
    parser.add_argument(
        "--size", metavar="N", type=int, default=224, help="height and width (default: 224)"
    )
    args = parser.parse_args(argv)
    if args.runs < MIN_RUNS or args.size < 1:
        parser.error(
            f"--runs is {MIN_RUNS} or more and --size 1 or more, got {args.runs} and {args.size}"
        )
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return compare_with_fused(args.runs, args.size)
    finally:
        torch.set_num_threads(num_threads)


def compare_with_fused(num_runs: int, size: int) -> int:
    """Run both models in turns and print how they compare; see :func:`main`."""
    torch.manual_seed(0)
    model = resnet18().eval()
    settle_batch_norm(model)
    image = torch.randn(1, 3, size, size)
    before = fx_instrument.instrument(model, warmup=WARMUP)
    after = fx_instrument.instrument(fuse(model), warmup=WARMUP)
    with torch.inference_mode():
        farthest = (before(image) - after(image)).abs().max().item()
        if not torch.allclose(before(image), after(image), rtol=1e-3, atol=1e-4):
            print(f"the outputs differ by up to {farthest:g}", file=sys.stderr)
            return 1
        for _ in range(WARMUP - 2):
            before(image)
            after(image)
        run_in_turns([before, after], image, num_runs)
    comparison = fx_instrument.compare(before.report(), after.report())
    print(f"ResNet-18, input 1x3x{size}x{size}, 1 thread; outputs differ by up to {farthest:.1e}")
    print(f"\n{comparison.head}\n\n{comparison.table(COLUMNS)}")
    batch_norm_ns = sum(row.before_ns or 0.0 for row in comparison.only_before)
    print(
        f"\nThe {len(comparison.only_before)} rows of BatchNorm took "
        f"{batch_norm_ns / 1e6:.4f} ms of a run; {in_words(comparison.total)}"
    )
    return 0


def settle_batch_norm(model: nn.Module) -> None:
    """Give each BatchNorm the statistics and weights that training could have left."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.running_var, 0.8, 1.2)
            nn.init.uniform_(module.weight, 0.8, 1.2)
            nn.init.uniform_(module.bias, -0.1, 0.1)


def run_in_turns(models: Sequence[nn.Module], image: torch.Tensor, num_runs: int) -> None:
    """Call each model ``num_runs`` times, in blocks that take turns.

    The speed of a machine changes within seconds: so both models meet the same.
    """
    for block, num_done in enumerate(range(0, num_runs, RUNS_IN_BLOCK)):
        for model in models if block % 2 else models[::-1]:
            for _ in range(min(RUNS_IN_BLOCK, num_runs - num_done)):
                model(image)


def in_words(total: fx_instrument.Difference) -> str:
    """Return what the fused model saves, with its 95 % interval."""
    if total.difference_ns is None or total.interval_ns is None:
        return "how much is saved is not known"
    low, high = (-end / 1e6 for end in reversed(total.interval_ns))
    is_noise = "more than noise" if total.is_more_than_noise else "no more than noise"
    return (
        f"a run saves {-total.difference_ns / 1e6:.4f} ms, with 95 % confidence {low:.4f} to "
        f"{high:.4f} ms: {is_noise}"
    )


if __name__ == "__main__":
    sys.exit(main())
