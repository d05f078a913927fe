"""The zoo benchmark: what its checks find, what they tell, and some of the models themselves."""

from __future__ import annotations

import json
import os
import random
import signal
import time
import warnings
from collections import Counter

import pytest
import torch
from torch import nn

import fx_instrument

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import timm
    import torchvision

    transformers = pytest.importorskip("transformers")

    from benchmarks import zoo, zoo_checks
    from benchmarks.zoo_models import FAST, TIMM, TRANSFORMERS, Specimen, specimens

    SPECIMENS = specimens()

# What the libraries warn of is not at issue here.
pytestmark = pytest.mark.filterwarnings("ignore")

TELLING = (
    "torchvision/mobilenet_v3_small",
    "torchvision/quantized_resnet18",
    "torchvision/raft_small",
    "torchvision/ssdlite320_mobilenet_v3_large",
    "timm/levit_128s",
    "timm/test_vit",
    "hf/bert",
    "hf/clip",
    "hf/funnel",
    "hf/gpt2",
    "hf/mamba",
    "hf/t5",
    "hf/whisper",
)


@pytest.fixture(autouse=True)
def one_thread():
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


class Scale(nn.Module):
    """Without children, and not torch's own: it is opened, and its node has a row."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(3.0))

    def forward(self, x):
        return x * self.factor


class Passing(nn.Module):
    """Computes nothing, so that no row can stand for it."""

    def forward(self, x):
        return x


class Net(nn.Module):
    """One of each kind of leaf; one is called twice."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.scale = Scale()
        self.passing = Passing()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        y = self.linear(self.passing(self.linear(x)))
        return self.dropout(self.scale(self.norm(y))), torch.zeros(2, 3), x


def images(index, is_training):
    return (torch.randn(3, 4),), {}


NET = Specimen("toy/net", Net, images)


def check(mode="train", specimen=NET, **kwargs):
    return zoo_checks.check(specimen, specimen.build(), mode, **kwargs)


def hooked(hook):
    """Return a wrapper that instruments a model and has ``hook`` after its forward."""

    def instrument(model):
        timed = fx_instrument.instrument(model)
        timed.register_forward_hook(hook)
        return timed

    return instrument


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *((name, mode) for name in TELLING for mode in ("eval", "train")),
        ("timm/levit_128s", "grad"),
        ("hf/bert", "grad"),
    ],
)
def test_an_instrumented_model_of_the_zoo_is_equal_and_has_every_leaf(name, mode):
    specimen = SPECIMENS[name]
    result = zoo_checks.check(specimen, specimen.build(), mode)
    # This one keeps some of the first call's autograd graph, so that a second backward raises.
    is_raising = (name, mode) == ("timm/levit_128s", "grad")
    status = zoo_checks.EAGER_RAISES if is_raising else zoo_checks.EQUAL
    assert result.status == status, (result.detail, result.missing)
    assert result.num_covered == result.num_leaf_calls > 0
    assert result.num_rows > 0


@pytest.mark.parametrize("mode", zoo_checks.MODES)
def test_a_toy_is_equal(mode):
    result = check(mode)
    assert (result.status, result.detail, result.missing) == (zoo_checks.EQUAL, "", ())
    assert result.num_leaf_calls == result.num_covered == 12
    assert result.closed == ()
    assert result.hidden_fraction == 0.0
    assert result.overhead is not None


def one_bit(module, args, output):
    y, *others = output
    return (torch.nextafter(y.detach(), torch.tensor(torch.inf)) - y.detach() + y, *others)


def sign_of_zero(module, args, output):
    return output[0], -output[1], output[2]


def other_class(module, args, output):
    return [*output]


def other_strides(module, args, output):
    return output[0], output[1].t().contiguous().t(), output[2]


def other_offset(module, args, output):
    return output[0], torch.zeros(7)[1:].view(2, 3), output[2]


def own_memory(module, args, output):
    return output[0], output[1], output[2].clone().detach().requires_grad_(args[0].requires_grad)


def one_number_more(module, args, output):
    torch.rand(1)


def one_python_number_more(module, args, output):
    random.random()


def changed_buffer(module, args, output):
    module.norm.num_batches_tracked += 1


def changed_parameter(module, args, output):
    module.linear.weight[0, 0] += 1


def changed_input(module, args, output):
    args[0].data[0, 0] += 1


def changed_attribute(module, args, output):
    module.dropout.p = 0.25


def new_attribute(module, args, output):
    module.scale.last = [None]


def other_gradient(module, args, output):
    output[0].register_hook(lambda gradient: gradient * 2)


def no_gradient(module, args, output):
    return output[0].detach(), output[1], output[2]


WRONG = {
    one_bit: "output[0]: ",
    sign_of_zero: "output[1]: other values",
    other_class: 'output: "builtins.list of',
    other_strides: "output[1]: stride is (1, 2), not (3, 1)",
    other_offset: "output[1]: offset is 1, not 0",
    own_memory: "output[2]: ",
    one_number_more: "random state",
    one_python_number_more: "random state",
    changed_buffer: "buffer['norm.num_batches_tracked']: other values",
    changed_input: "input[0][0]: other values",
    changed_attribute: "attribute of module['dropout']['p']: '0.25', not '0.5'",
    new_attribute: "attribute of module['scale']: ",
    other_gradient: "gradient of parameter['linear.weight']: other values",
    no_gradient: "output[0]: requires_grad is False, not True",
}


@pytest.mark.parametrize("hook", WRONG, ids=lambda hook: hook.__name__)
def test_a_wrapper_that_changes_something_is_unequal(hook):
    result = check(instrument=hooked(hook))
    assert result.status == zoo_checks.UNEQUAL
    assert WRONG[hook] in result.detail
    assert result.has_failed


def test_a_wrapper_that_changes_a_parameter_is_unequal():
    result = check("eval", instrument=hooked(changed_parameter))
    assert result.status == zoo_checks.UNEQUAL
    assert result.detail == "call 2, parameter['linear.weight']: other values"


def test_a_difference_in_the_second_call_alone_is_found():
    calls = []

    def hook(module, args, output):
        calls.append(1)
        return sign_of_zero(module, args, output) if len(calls) == 2 else None

    result = check(instrument=hooked(hook))
    assert (result.status, result.detail) == (zoo_checks.UNEQUAL, "call 2, output[1]: other values")


def test_a_wrapper_that_raises_is_told_apart():
    def hook(module, args, output):
        raise ValueError("no\nway")

    result = check(instrument=hooked(hook))
    assert result.status == zoo_checks.RAISES
    assert "ValueError: no" in result.detail
    assert result.has_failed


def test_an_instrument_that_raises_is_a_failure():
    def instrument(model):
        raise RuntimeError("cannot")

    result = check(instrument=instrument)
    assert result.status == zoo_checks.RAISES
    assert result.detail.startswith("RuntimeError: cannot (test_zoo.py:")


class Raising(nn.Module):
    def forward(self, x):
        raise KeyError("every call")


def test_what_eager_raises_must_be_raised_alike():
    specimen = Specimen("toy/raising", Raising, images)
    assert check(specimen=specimen).status == zoo_checks.EAGER_RAISES
    assert check(specimen=specimen).detail == "KeyError: 'every call'"
    assert not check(specimen=specimen).has_failed

    def swallow(model):
        model.forward = lambda x: x
        return model

    assert check(specimen=specimen, instrument=swallow).status == zoo_checks.UNEQUAL


class Erratic(nn.Module):
    def forward(self, x):
        return x + int.from_bytes(os.urandom(4), "little")


def test_a_model_that_differs_from_itself_is_not_reproducible():
    result = check("eval", Specimen("toy/erratic", Erratic, images))
    assert result.status == zoo_checks.NOT_REPRODUCIBLE
    assert not result.has_failed


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        (lambda row: row.target == "linear", "linear: 0 of 4 calls in rows"),
        (lambda row: row.module == "scale", "scale: 0 of 2 calls in rows"),
    ],
)
def test_a_lost_row_is_reported(monkeypatch, lost, words):
    make_report = fx_instrument.report

    def report(module):
        report = make_report(module)
        report.rows = tuple(row for row in report.rows if not lost(row))
        return report

    monkeypatch.setattr(fx_instrument, "report", report)
    result = check()
    assert result.status == zoo_checks.LACKS_ROWS
    assert result.missing == (words,)
    assert result.num_covered < result.num_leaf_calls
    assert result.has_failed


def test_a_row_too_much_is_reported(monkeypatch):
    make_report = fx_instrument.report

    def report(module):
        report = make_report(module)
        report.rows += tuple(row for row in report.rows if row.target == "norm")
        return report

    monkeypatch.setattr(fx_instrument, "report", report)
    assert check().missing == ("norm: 4 of 2 calls in rows",)
    assert check().status == zoo_checks.LACKS_ROWS


def test_leaf_calls_are_counted_by_path():
    train, again = zoo_checks.count_leaf_calls(Net(), NET, "train")
    assert train.all == again.all
    assert train.all == {"linear": 2, "norm": 1, "scale": 1, "passing": 1, "dropout": 1}
    assert train.computing == {**train.all, "passing": 0}
    assert train.own == {"linear", "norm", "dropout"}


def test_what_is_called_within_a_leaf_is_not_counted():
    class Attending(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2)

        def forward(self, x):
            return self.attention(x, x, x)[0]

    calls = zoo_checks.count_leaf_calls(
        Attending(), Specimen("toy/attending", Attending, images), "eval"
    )
    assert calls[0].all == Counter(attention=1)


def test_a_leaf_in_a_plain_list_has_a_path_and_one_made_on_the_way_its_class():
    class Listing(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden = [nn.ReLU()]

        def forward(self, x):
            return self.hidden[0](nn.Tanh()(x))

    specimen = Specimen("toy/listing", Listing, images)
    calls = zoo_checks.count_leaf_calls(Listing(), specimen, "eval")
    assert calls[0].all == {"hidden.0": 1, "torch.nn.modules.activation.Tanh": 1}


def test_constant_parameters_get_noise_and_builds_are_alike():
    first, second = NET.build(), NET.build()
    assert first.norm.weight.unique().numel() == 4
    for parameter, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(parameter, other)


def test_inputs_of_two_calls_differ_in_values_alone():
    for specimen in SPECIMENS.values():
        pairs = zip(
            zoo_checks._tensors(specimen.inputs(0, is_training=True)),
            zoo_checks._tensors(specimen.inputs(1, is_training=True)),
            strict=True,
        )
        tensors = [(one, other) for one, other in pairs]
        assert all(one.shape == other.shape for one, other in tensors)
        assert any(not torch.equal(one, other) for one, other in tensors), specimen.name


def test_the_zoo_holds_every_torchvision_model_and_every_file_of_timm():
    assert {f"torchvision/{name}" for name in torchvision.models.list_models()} <= set(SPECIMENS)
    files = {timm.model_entrypoint(name).__module__ for name in timm.list_models()}
    assert {timm.model_entrypoint(name).__module__ for name in TIMM} == files
    assert len({tiny.model for tiny in TRANSFORMERS.values()}) >= 45
    assert set(FAST) <= set(SPECIMENS)
    assert set(TELLING) <= set(SPECIMENS)
    assert {name.partition("/")[0] for name in FAST} == {"torchvision", "timm", "hf"}


def build_nothing():
    raise OSError("no weights\nhere")


class Killed(Passing):
    """Ends its process, but only when instrumented."""


class Hanging(Passing):
    """Does not come to an end when instrumented."""


class HangingAlways(nn.Module):
    def forward(self, x):
        time.sleep(60)


TOYS = {
    name: Specimen(name, build, images)
    for name, build in {
        "toy/net": Net,
        "toy/unbuilt": build_nothing,
        "toy/killed": Killed,
        "toy/hanging": Hanging,
        "toy/slow": HangingAlways,
    }.items()
}


@pytest.fixture
def run_main(monkeypatch, capsys):
    make_report = fx_instrument.report

    def report(module):
        if isinstance(module, Killed):
            os.kill(os.getpid(), signal.SIGKILL)
        if isinstance(module, Hanging):
            time.sleep(60)
        return make_report(module)

    monkeypatch.setattr(zoo, "specimens", lambda: TOYS)
    monkeypatch.setattr(fx_instrument, "report", report)

    def run(*argv):
        # Without gradients: a process forked after a backward pass cannot make one.
        status = zoo.main([*argv, "--modes", "eval"])
        return status, capsys.readouterr().out

    return run


def test_exit_status_is_0_if_all_is_equal(run_main):
    status, out = run_main("net")
    assert status == 0
    assert out.startswith("ok   toy/net: eval:equal; rows 9, closed 0, leaves 100 %, hidden 0.0 %")
    assert "1 models" in out


def test_a_model_that_cannot_be_built_is_listed_with_its_reason(run_main):
    status, out = run_main("toy/unbuilt")
    assert status == 0
    assert "note toy/unbuilt: -:not built\n     -: OSError: no weights here (test_zoo.py:" in out


def test_a_crash_is_a_line_and_not_the_end(run_main, tmp_path):
    path = tmp_path / "results.json"
    status, out = run_main("killed", "net", "--json", str(path))
    assert status == 1
    assert "FAIL toy/killed: eval:crashed\n     eval: while instrumented: SIGKILL" in out
    assert "ok   toy/net: eval:equal" in out
    content = json.loads(path.read_text())
    assert {result["name"]: result["status"] for result in content["results"]} == {
        "toy/net": "equal",
        "toy/killed": "crashed",
    }
    assert content["environment"]["transformers"] == transformers.__version__


def test_a_model_over_the_time_limit_fails_unless_eager_alone_takes_that_long(run_main):
    status, out = run_main("hanging", "slow", "--time-limit", "2", "--jobs", "2")
    assert status == 1
    assert "FAIL toy/hanging: eval:timed out\n     eval: while instrumented: over 2 s" in out
    assert "note toy/slow: eval:eager timed out\n     eval: while eager: over 2 s" in out
    status, _ = run_main("slow", "--time-limit", "1")
    assert status == 0


def test_a_name_that_nothing_fits_is_wrong_usage(run_main, capsys):
    with pytest.raises(SystemExit) as exit_info:
        run_main("no_such_model")
    assert exit_info.value.code == 2
    assert "no model fits 'no_such_model'; --list shows all names" in capsys.readouterr().err


def test_a_mode_that_there_is_not_is_wrong_usage(capsys):
    with pytest.raises(SystemExit) as exit_info:
        zoo.main(["--modes", "eval,trian"])
    assert exit_info.value.code == 2
    assert "no mode 'trian'; there are eval, grad, train" in capsys.readouterr().err


def test_patterns_choose_with_or_without_the_collection():
    names = ["torchvision/resnet18", "torchvision/resnet50", "hf/resnet", "hf/bert"]
    assert zoo.chosen(names, [], is_fast=False) == names
    assert zoo.chosen(names, ["resnet*"], is_fast=False) == names[:3]
    assert zoo.chosen(names, ["hf/*", "resnet50"], is_fast=False) == names[1:]
    assert zoo.chosen(names, [], is_fast=True) == ["torchvision/resnet18", "hf/bert"]
