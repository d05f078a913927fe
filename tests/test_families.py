"""instrument() on the smallest model of every torchvision classification family."""

import copy
import time

import pytest
import torch
from torch import fx
from torchvision import models

import fx_instrument
from fx_instrument.insertion import is_row

# Model, side of the input image in evaluation mode, in training mode.
FAMILIES = {
    "alexnet": (64, 64),
    "convnext_tiny": (64, 64),
    "densenet121": (64, 64),
    "efficientnet_b0": (64, 64),
    "efficientnet_v2_s": (64, 64),
    "googlenet": (64, 224),
    "inception_v3": (96, 299),
    "maxvit_t": (224, 224),
    "mnasnet0_5": (64, 64),
    "mobilenet_v2": (64, 64),
    "mobilenet_v3_small": (64, 64),
    "regnet_x_400mf": (64, 64),
    "regnet_y_400mf": (64, 64),
    "resnet18": (64, 64),
    "resnext50_32x4d": (64, 64),
    "shufflenet_v2_x0_5": (64, 64),
    "squeezenet1_1": (64, 64),
    "swin_t": (64, 64),
    "swin_v2_t": (64, 64),
    "vgg11": (64, 64),
    "vit_b_32": (224, 224),
    "wide_resnet50_2": (64, 64),
}

# Plain tracing computes on this model's buffers and bakes the result in; a capture keeps the nodes.
COMPUTES_ON_BUFFERS = {"maxvit_t"}


class TimingInterpreter(fx.Interpreter):
    """Times the run, and each node, as the torch.fx documentation shows it."""

    def __init__(self, graph_module):
        super().__init__(graph_module)
        self.total_runtime_sec = []
        self.runtimes_sec = {}

    def run(self, *args):
        start = time.perf_counter()
        output = super().run(*args)
        self.total_runtime_sec.append(time.perf_counter() - start)
        return output

    def run_node(self, n):
        start = time.perf_counter()
        result = super().run_node(n)
        self.runtimes_sec.setdefault(n, []).append(time.perf_counter() - start)
        return result


def build(name):
    torch.manual_seed(0)
    kwargs = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    return models.get_model(name, weights=None, **kwargs).eval()


def image(side, batch=1):
    return torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(1))


def flat(output):
    return list(output) if isinstance(output, tuple) else [output]


def train_step(model, inputs):
    """Return outputs, gradients and buffers of one step in training mode."""
    torch.manual_seed(2)
    model.train()
    model.zero_grad()
    outputs = flat(model(inputs))
    sum(output.sum() for output in outputs).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return outputs, gradients, dict(model.named_buffers())


def assert_equal(actual, expected):
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        if value is None:
            assert actual[name] is None
        else:
            assert torch.equal(actual[name], value), name


def test_every_family_is_here():
    files = {models.get_model_builder(name).__module__ for name in models.list_models(models)}
    assert files == {models.get_model_builder(name).__module__ for name in FAMILIES}


@pytest.mark.parametrize("name", FAMILIES)
def test_outputs_rows_and_state_are_those_of_the_model(name):
    model = build(name)
    inputs = image(FAMILIES[name][0])
    attributes = {path: dict(vars(module)) for path, module in model.named_modules()}
    state = {key: value.clone() for key, value in model.state_dict().items()}

    timed = fx_instrument.instrument(model)
    with torch.inference_mode():
        assert torch.equal(timed(inputs), model(inputs))

    assert isinstance(timed, type(model))
    assert list(timed.state_dict()) == list(state)
    assert_equal(timed.state_dict(), state)
    for path, module in model.named_modules():
        assert vars(module) == attributes[path], path

    traced = fx.symbolic_trace(model)
    if name in COMPUTES_ON_BUFFERS:
        assert [node.op for node in traced.graph.nodes].count("get_attr")
        traced = fx_instrument.insertion.untimed_copy(timed.graph)
        traced = fx.GraphModule(model, traced)
    interpreter = TimingInterpreter(traced)
    with torch.inference_mode():
        assert torch.equal(interpreter.run(inputs), model(inputs))
    report = timed.report()
    assert list(zip(report.nodes["op"], report.nodes["name"], strict=True)) == [
        (node.op, node.name) for node in interpreter.runtimes_sec if is_row(node)
    ]
    assert [node.name for node in timed.runtimes_sec] == list(report.nodes["name"])
    assert len(timed.total_runtime_sec) == report.num_runs == 1
    assert (report.node_ns.sum(axis=1) == report.total_ns).all()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_training_step_is_that_of_the_model(name):
    model = build(name)
    twin = copy.deepcopy(model)
    inputs = image(FAMILIES[name][1], batch=2)

    outputs, gradients, buffers = train_step(fx_instrument.instrument(model), inputs)
    expected_outputs, expected_gradients, expected_buffers = train_step(twin, inputs)

    assert len(outputs) == len(expected_outputs)
    assert all(map(torch.equal, outputs, expected_outputs))
    assert_equal(gradients, expected_gradients)
    assert_equal(buffers, expected_buffers)
