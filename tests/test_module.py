"""What instrument() gives: a drop-in for the model, and its report."""

import copy
import inspect
import io
import pickle
import random
import threading

import pytest
import torch
from torch import fx, nn
from torchvision.models import resnet18
from torchvision.models.feature_extraction import create_feature_extractor

import fx_instrument
from fx_instrument import CaptureError, EmptyRecordingError, NotAModuleError, instrument


class Net(nn.Module):
    """A model with an attribute, a method, a property and a branch on the mode."""

    def __init__(self, width=4):
        super().__init__()
        self.first = nn.Linear(3, width)
        self.norm = nn.BatchNorm1d(width)
        self.dropout = nn.Dropout(0.5)
        self.unused = nn.Linear(1, 1)
        self.last = nn.Linear(width, 2)
        self.scale = 2.0

    @property
    def width(self):
        return self.first.out_features

    def encode(self, x):
        return torch.relu(self.norm(self.first(x)))

    def forward(self, x, *, shift=None):
        x = self.dropout(self.encode(x)) * self.scale
        if shift is not None:
            x = x + shift
        if self.training:
            x = x - 1
        return self.last(x)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def x():
    return torch.randn(5, 3, generator=torch.Generator().manual_seed(1))


def names(module):
    return [node.name for node in module.graph.nodes if not node.name.startswith("t")]


def test_the_result_is_the_model(model, x):
    timed = instrument(model)

    assert isinstance(timed, Net)
    assert type(model) is Net
    assert timed.width == 4
    assert inspect.signature(timed.forward) == inspect.signature(model.forward)
    assert repr(timed) == repr(model)
    assert [*timed.state_dict()] == [*model.state_dict()]
    assert [name for name, _ in timed.named_parameters()] == [
        name for name, _ in model.named_parameters()
    ]
    assert torch.equal(timed.eval().encode(x), model.encode(x))
    assert timed.first is model.first


def test_instrumenting_and_calling_changes_nothing_in_the_model(model, x):
    model.eval()
    attributes = {path: dict(vars(module)) for path, module in model.named_modules()}
    class_attributes = dict(vars(Net))
    random_state = torch.get_rng_state()

    timed = instrument(model)
    timed(x)

    assert type(model) is Net
    assert dict(vars(Net)) == class_attributes
    assert {path: dict(vars(module)) for path, module in model.named_modules()} == attributes
    assert torch.equal(torch.get_rng_state(), random_state)


def test_the_mode_may_be_switched_at_any_time(model, x):
    timed = instrument(model.eval())
    twin = copy.deepcopy(model)
    for is_training in (False, True, False, True):
        timed.train(is_training)
        twin.train(is_training)
        torch.manual_seed(2)
        output = timed(x)
        torch.manual_seed(2)
        assert torch.equal(output, twin(x))
        assert torch.equal(timed.norm.running_mean, twin.norm.running_mean)
    assert fx_instrument.report(timed).num_runs == 4


def test_what_changes_on_the_model_is_seen_by_the_next_call(model, x):
    timed = instrument(model.eval())
    timed(x)

    model.scale = 3.0
    assert torch.equal(timed(x), model(x))
    timed.last = nn.Linear(4, 6)
    assert timed(x).shape == (5, 6)
    with torch.no_grad():
        timed.first.weight.zero_()
    assert torch.equal(timed(x), model(x))
    timed.first.weight = nn.Parameter(torch.ones(4, 3))
    assert torch.equal(timed(x), model(x))
    timed.load_state_dict({key: value + 1 for key, value in model.state_dict().items()})
    assert torch.equal(timed(x), model(x))
    assert timed.double()(x.double()).dtype == torch.float64
    assert fx_instrument.report(timed).num_runs == 7


def test_a_child_may_be_replaced_by_one_of_another_class(x):
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.ReLU(), nn.ReLU()))
    timed = instrument(model)
    timed(x)
    model[1] = nn.Sequential(nn.Sigmoid())
    assert torch.equal(timed(x), model(x))
    model[1].append(nn.Tanh())
    assert torch.equal(timed(x), model(x))


def test_tensor_or_none_arguments_get_a_graph_each(model, x):
    timed = instrument(model.eval())
    shift = torch.ones(4)
    assert torch.equal(timed(x, shift=shift), model(x, shift=shift))
    assert torch.equal(timed(x), model(x))
    assert torch.equal(timed(x, shift=None), model(x))
    assert fx_instrument.report(timed).num_runs == 3


def test_hooks_fire_once_a_call_on_real_tensors(model, x):
    seen = []
    timed = instrument(model.eval())
    model.register_forward_hook(lambda module, args, output: seen.append(("root", type(output))))
    model.first.register_forward_hook(
        lambda module, args, output: seen.append(("first", type(output)))
    )
    timed(x)
    assert seen == [("first", torch.Tensor), ("root", torch.Tensor)]


def test_a_hook_of_an_opened_module_fires(x):
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    timed = instrument(model)
    timed(x)
    model[0].register_forward_hook(lambda module, args, output: output + 1)
    assert torch.equal(timed(x), model(x))


@pytest.mark.parametrize(
    "copy_of",
    [
        copy.deepcopy,
        copy.copy,
        lambda module: pickle.loads(pickle.dumps(module)),
        lambda module: _saved_and_loaded(module),
    ],
    ids=["deepcopy", "copy", "pickle", "torch.save"],
)
def test_a_copy_computes_the_same_and_records_into_itself(model, x, copy_of):
    timed = instrument(model.eval())
    expected = timed(x)

    twin = copy_of(timed)
    with pytest.raises(EmptyRecordingError):
        fx_instrument.report(twin)
    assert torch.equal(twin(x), expected)
    assert torch.equal(twin(x), expected)

    assert isinstance(twin, Net)
    assert fx_instrument.report(twin).num_runs == 2
    assert fx_instrument.report(timed).num_runs == 1


def _saved_and_loaded(module):
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def test_a_deep_copy_shares_no_tensor(model, x):
    timed = instrument(model.eval())
    twin = copy.deepcopy(timed)
    with torch.no_grad():
        twin.last.bias.add_(1)
    assert torch.allclose(twin(x), timed(x) + 1)


def test_what_is_offered(model, x):
    timed = instrument(model.eval())
    timed(x)
    timed(x)

    assert isinstance(timed.graph_module, fx.GraphModule)
    assert timed.graph is timed.graph_module.graph
    assert timed.code == timed.graph_module.code
    timed.graph.lint()
    assert timed.report().num_runs == 2
    assert timed.summary() == fx_instrument.summary(timed)
    assert len(timed.total_runtime_sec) == 2
    assert all(isinstance(seconds, float) for seconds in timed.total_runtime_sec)
    assert set(timed.runtimes_sec) <= set(timed.graph.nodes)
    for node, seconds in timed.runtimes_sec.items():
        assert isinstance(node, fx.Node)
        assert [type(second) for second in seconds] == [float, float]
    timed.train()(x)
    timed.reset()
    timed(x)
    assert set(timed.runtimes_sec) <= set(timed.graph.nodes)
    timed.reset()
    assert timed.summary().startswith("No run has been recorded")
    assert timed.total_runtime_sec == []


class Named(nn.Module):
    """Has attributes of the names that instrument() offers."""

    def __init__(self):
        super().__init__()
        self.graph = nn.Linear(2, 2)
        self.register_buffer("code", torch.ones(2))
        self.runtimes_sec = "mine"

    def summary(self):
        return "mine"

    @property
    def total_runtime_sec(self):
        return "mine"

    def forward(self, x):
        return self.graph(x) + self.code


def test_the_names_of_the_user_win():
    model = Named()
    timed = instrument(model)
    assert timed.graph is model.graph
    assert timed.code is model.code
    assert timed.summary() == timed.total_runtime_sec == timed.runtimes_sec == "mine"
    x = torch.randn(3, 2)
    assert torch.equal(timed(x), model(x))
    timed.report = "set by the user"
    assert timed.report == model.report == "set by the user"
    assert fx_instrument.report(timed).num_runs == 1
    assert "graph" in fx_instrument.summary(timed)
    fx_instrument.reset(timed)
    assert "No run" in fx_instrument.summary(timed)


def test_before_any_call_there_is_a_message(model):
    timed = instrument(model)
    assert "No run has been recorded yet" in timed.summary()
    assert "No run has been recorded yet" in fx_instrument.summary(timed, should_sort=True)
    with pytest.raises(EmptyRecordingError, match="at least one recorded run, got 0; call"):
        timed.report()
    assert timed.total_runtime_sec == []
    assert set(map(tuple, timed.runtimes_sec.values())) == {()}


def test_a_call_that_raises_leaves_no_row_and_is_counted(model, x):
    timed = instrument(model.eval())
    with pytest.raises(RuntimeError) as ours:
        timed(x[:, :2])
    with pytest.raises(RuntimeError) as eager:
        model(x[:, :2])
    assert str(ours.value) == str(eager.value)
    with pytest.raises(EmptyRecordingError, match="1 raised an exception"):
        timed.report()
    timed(x)
    assert (timed.report().num_runs, timed.report().num_aborted) == (1, 1)


def test_wrong_arguments_raise_what_the_model_raises(model, x):
    timed = instrument(model)
    with pytest.raises(TypeError, match=r"forward\(\) missing 1 required positional argument"):
        timed()
    with pytest.raises(TypeError, match="unexpected keyword argument 'y'"):
        timed(x, y=1)


def test_threads_record_a_row_a_run(model, x):
    timed = instrument(model.eval())
    expected = model(x)
    wrong = []

    def work():
        with torch.inference_mode():
            wrong.extend(1 for _ in range(50) if not torch.equal(timed(x), expected))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    report = timed.report()
    assert report.num_runs == 200
    assert (report.node_ns > 0)[:, report.nodes["op"] == "call_module"].all()


def test_a_model_runs_in_another_thread_while_one_is_captured(model, x):
    """Tracing patches nn.Module for the whole process."""
    model.eval()
    expected = model(x)
    stop = threading.Event()
    wrong = []

    def work():
        while not stop.is_set():
            output = model(x)
            if type(output) is not torch.Tensor or not torch.equal(output, expected):
                wrong.append(output)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(20):
            instrument(Net())
    finally:
        stop.set()
        thread.join()
    assert not wrong


def test_an_instrumented_module_is_given_back(model, x):
    timed = instrument(model.eval())
    assert instrument(timed) is timed
    timed(x)
    assert fx_instrument.report(timed).num_runs == 1


def test_two_instrumentations_of_one_model_record_apart(model, x):
    first, second = instrument(model.eval()), instrument(model)
    first(x)
    assert fx_instrument.report(first).num_runs == 1
    with pytest.raises(EmptyRecordingError):
        fx_instrument.report(second)


def test_a_timed_part_of_a_larger_model(model, x):
    larger = nn.Sequential(nn.Identity(), instrument(model.eval()))
    assert torch.equal(larger(x), model(x))
    assert fx_instrument.report(larger[1]).num_runs == 1
    timed = instrument(larger)
    assert torch.equal(timed(x), model(x))
    assert fx_instrument.report(timed).num_runs == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (3, r"needs an nn\.Module, got 3"),
        (None, r"needs an nn\.Module, got None"),
        (torch.relu, r"needs an nn\.Module, got <built-in method relu"),
        (Net, r"instantiate it first: instrument\(Net\(\.\.\.\)\)"),
    ],
)
def test_what_is_no_module_is_refused(wrong, message):
    with pytest.raises(NotAModuleError, match=message) as caught:
        instrument(wrong)
    assert isinstance(caught.value, TypeError)


@pytest.mark.filterwarnings(
    "ignore:.*torch.jit:FutureWarning", "ignore:.*torch.jit:DeprecationWarning"
)
def test_a_script_module_is_timed_as_a_whole(x):
    scripted = torch.jit.script(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))
    timed = instrument(scripted)
    assert isinstance(timed, torch.jit.ScriptModule)
    assert torch.equal(timed(x), scripted(x))
    assert [*timed.state_dict()] == [*scripted.state_dict()]
    (row,) = timed.report().rows
    assert (row.depth, row.calls.tolist()) == (0, [1])
    (closed,) = timed.report().closed
    assert closed.reason == "it is compiled or scripted, so that no Python of it runs"
    assert closed.advice == "time the module that it was made from"


@pytest.mark.parametrize("function", [fx_instrument.report, fx_instrument.summary])
def test_a_module_that_is_not_instrumented_has_no_report(model, function):
    with pytest.raises(
        NotAModuleError, match=r"a module that instrument.* gave is needed, got Net"
    ):
        function(model)


class Gate(nn.Module):
    """Branches on a sum, and draws a number that no graph would draw."""

    def forward(self, x):
        if random.random() < 1 and x.sum() > 0:
            return x
        return -x


def test_a_model_that_tracing_cannot_open_is_left_as_it_was_and_its_parts_are_timed():
    model = nn.Sequential(nn.Linear(2, 2), Gate())
    attributes = {path: dict(vars(module)) for path, module in model.named_modules()}
    timed = instrument(model)
    for sign in (1, -1, 1):
        x = torch.full((3, 2), float(sign))
        assert torch.equal(timed(x), model(x))
    assert type(model) is nn.Sequential
    assert {path: dict(vars(module)) for path, module in model.named_modules()} == attributes
    (closed,) = timed.report().closed
    assert (closed.module, closed.class_name) == ("1", "Gate")
    assert (closed.file, closed.line) == (__file__, Gate.forward.__code__.co_firstlineno + 1)
    assert "random" in closed.advice or "draw" in closed.advice
    assert str(closed) == (
        f"module '1' (Gate): it calls Random.random(), which a graph does not keep "
        f'(File "{__file__}", line {closed.line}); {closed.advice}'
    )
    assert [row.name for row in timed.report().rows if row.depth == 0] == [
        "input_1",
        "_0",
        "_1",
        "output",
    ]


def test_the_graph_of_what_cannot_be_opened_is_an_error_and_the_report_is_not():
    timed = instrument(Gate())
    timed(torch.ones(2))
    for ask in (lambda: timed.graph, lambda: timed.code, lambda: timed.graph_module):
        with pytest.raises(CaptureError, match=r"cannot open the model \(Gate\): it calls Random"):
            ask()
    assert timed.report().num_runs == 1
    assert timed.runtimes_sec == {}


@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0")
def test_torch_compile_and_export_see_the_model(model, x):
    timed = instrument(model.eval())
    exported = torch.export.export(timed, (x,))
    assert torch.equal(exported.module()(x), model(x))
    compiled = torch.compile(timed, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), model(x))
    with pytest.raises(EmptyRecordingError):
        fx_instrument.report(timed)


def test_a_graph_module_that_is_compiled_anew_runs_its_new_graph() -> None:
    model = fx.symbolic_trace(nn.Sequential(nn.ReLU()))
    m = instrument(model)
    x = torch.tensor([-1.0, 1.0])
    m(x)
    for node in m.graph.nodes:
        if node.op == "output":
            with m.graph.inserting_before(node):
                node.args = (m.graph.call_function(torch.neg, (node.args[0],)),)
    m.recompile()
    assert m(x).tolist() == model(x).tolist() == [0, -1]
    assert [row.name for row in fx_instrument.report(m).rows if row.num_runs == 1] == ["neg"]


def test_a_feature_extractor_can_be_switched_between_its_modes() -> None:
    model = create_feature_extractor(resnet18(num_classes=2), ["layer1", "layer2"])
    m = instrument(model)
    x = torch.randn(1, 3, 32, 32)
    for is_training in (True, False, True):
        m.train(is_training)
        assert m(x).keys() == {"layer1", "layer2"}
    with fx_instrument.profile(model) as p:
        model.eval()
        model(x)
    assert p.report().num_runs == 1
    assert model(x).keys() == {"layer1", "layer2"}
