"""Models in several processes: data parallel and fully sharded, over gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed

import fx_instrument

WORKER = Path(__file__).with_name("distributed_worker.py")

CHECKS = ("data_parallel", "time_data_parallel", "shard_then_time", "time_then_shard")

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="needs gloo",
)


@pytest.fixture(scope="module")
def two_processes() -> subprocess.CompletedProcess[str]:
    """Run all checks in two processes, as starting them takes longest."""
    paths = [str(Path(fx_instrument.__file__).parents[1]), str(WORKER.parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    return subprocess.run(
        [*launcher, "--standalone", str(WORKER), *CHECKS],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


# Before, its streams of the CPU lack what fully_shard() asks of them.
shards_on_cpu = pytest.mark.skipif(
    torch.__version__ < "2.7", reason="needs a torch that shards models on the CPU"
)


@pytest.mark.parametrize("model", ["build", "build_closed"])
@pytest.mark.parametrize(
    "check",
    [pytest.param(each, marks=shards_on_cpu if "shard" in each else ()) for each in CHECKS],
)
def test_a_timed_model_trains_as_it_does_untimed_in_two_processes(
    check: str, model: str, two_processes: subprocess.CompletedProcess[str]
) -> None:
    lines = two_processes.stdout.splitlines()
    wanted = [f"{check} of {model} holds in {rank}" for rank in (0, 1)]
    assert [line for line in wanted if line in lines] == wanted, two_processes.stderr[:5000]
