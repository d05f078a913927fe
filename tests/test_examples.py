"""The examples: what they print is what they say."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name: str) -> Any:
    """Return an example as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_fused_model_loses_the_rows_of_batch_norm_alone(capsys: pytest.CaptureFixture[str]) -> None:
    num_threads = torch.get_num_threads()
    assert example("fuse_conv_bn").main(["--runs", "10", "--size", "32"]) == 0
    printed, errors = capsys.readouterr()
    assert errors == ""
    lines = printed.splitlines()
    only_before = [line.split()[0] for line in lines if line.endswith("only before")]
    assert len(only_before) == 20
    assert all(re.search(r"bn\d|downsample_1", name) for name in only_before)
    assert not any(line.endswith("  only after") for line in lines)
    assert "rows: 51 in both" in printed
    before = next(place for place, line in enumerate(lines) if line.startswith("bn1 "))
    assert [line.split()[0] for line in lines[before - 1 : before + 2]] == ["conv1", "bn1", "relu"]
    assert torch.get_num_threads() == num_threads


def test_total_saving_has_its_interval_and_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert example("fuse_conv_bn").main(["--runs", "10", "--size", "32"]) == 0
    printed = capsys.readouterr().out
    number = r"-?\d+\.\d+"
    assert re.search(
        rf"^(saving|loss) \S+ \w+, {number} %(, 95 % interval {number} % to {number} %)?: "
        r"(no )?more than noise$",
        printed,
        flags=re.MULTILINE,
    )
    last = printed.splitlines()[-1]
    found = re.fullmatch(
        rf"The 20 rows of BatchNorm took {number} ms of a run; a run saves ({number}) ms, with "
        rf"95 % confidence ({number}) to ({number}) ms: (no )?more than noise",
        last,
    )
    assert found is not None
    saving, low, high = map(float, found.groups()[:3])
    assert low <= saving <= high
    assert (low <= 0 <= high) == (found[4] is not None)


def test_outputs_that_differ_are_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = example("fuse_conv_bn")

    def wrong(model: nn.Module) -> nn.Module:
        return nn.Sequential(model, nn.Softmax(1))

    monkeypatch.setattr(module, "fuse", wrong)
    assert module.main(["--runs", "10", "--size", "32"]) == 1
    printed, errors = capsys.readouterr()
    assert printed == ""
    assert "outputs differ by up to" in errors


def test_too_few_runs_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        example("fuse_conv_bn").main(["--runs", "1"])
    assert ended.value.code == 2
    assert "--runs is 10 or more" in capsys.readouterr().err
