"""Which modules are opened, left closed and timed at all, and what is said of wrong names."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import closed_toys as closed
import pytest
import torch
import toys
from torch import nn
from twins import effects_of_calls

import fx_instrument
from fx_instrument import FxInstrumentError, NoSuchModuleError, instrument, profile

X = torch.ones(2, 4)


class Block(nn.Module):
    def __init__(self, duration_ns: int = 3) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.spender = toys.Spender(duration_ns, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.spender(self.linear(x)) + 1


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = Block(30)
        self.blocks = nn.ModuleList([Block(300), Block(3000)])
        self.head = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class ClosedModel(Model):
    """The same, and closed."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return super().forward(x)


def names_of(report: fx_instrument.Report, depth: int | None = None) -> list[str]:
    return [
        row.name
        for row in report.rows
        if row.op == "call_module" and (depth is None or row.depth == depth)
    ]


def run(model: nn.Module, **options: Any) -> fx_instrument.Report:
    """Check that calls do what they do untimed, and return the report of one."""
    twin = copy.deepcopy(model)
    timed = instrument(model, clock=toys.still_clock, **options)
    assert effects_of_calls(timed, lambda: (X.clone(),), 2) == effects_of_calls(
        twin, lambda: (X.clone(),), 2
    )
    assert closed.marks_of(model) == []
    timed.reset()
    timed(X)
    report: fx_instrument.Report = fx_instrument.report(timed)
    roots = [row.ns for row in report.rows if row.depth == 0]
    assert sum(roots).tolist() == report.total_ns.tolist()
    return report


BLOCKS = ["stem", "blocks_0", "blocks_1"]

# Ways to mean all blocks.
WAYS: dict[str, Any] = {
    "class": Block,
    "tuple of classes": (Block,),
    "list": [Block],
    "generator": lambda: (cls for cls in [Block]),
    "name of the class": "Block",
    "full name of the class": "test_options.Block",
    "glob of the class": "Bl*k",
    "glob of the full name": "test_options.B*",
    "paths": ["stem", "blocks.0", "blocks.1"],
    "glob of paths": ["stem", "blocks.[0-9]"],
    "path and class": ["stem", Block],
    "predicate": lambda: lambda path, module: isinstance(module, Block),
    "predicate of paths": lambda: lambda path, module: path in ("stem", "blocks.0", "blocks.1"),
}


def choice_of(way: str) -> Any:
    choice = WAYS[way]
    is_made = way.startswith(("generator", "predicate"))
    return choice() if is_made else choice


@pytest.mark.parametrize("build", [Model, ClosedModel])
@pytest.mark.parametrize("way", WAYS)
def test_leaf_modules_are_one_row(way: str, build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    report = run(build(), leaf=choice_of(way))
    rows = {row.name: row for row in report.rows}
    times = [rows[name].ns.tolist() for name in BLOCKS]
    assert times == [[32], [302], [3002]]
    assert all(rows[name].rows == () for name in BLOCKS)
    assert "spend" not in rows
    assert [info.module for info in report.closed] == ([""] if build is ClosedModel else [])


@pytest.mark.parametrize("build", [Model, ClosedModel])
@pytest.mark.parametrize("way", WAYS)
def test_only_the_modules_that_are_chosen_are_timed(
    way: str, build: Callable[[], nn.Module]
) -> None:
    torch.manual_seed(0)
    report = run(build(), only=choice_of(way))
    root, *rows = report.rows
    assert root.ns.tolist() == [3336]
    inner = [row for row in rows if row.depth == 1]
    assert [(row.name, row.ns.tolist()) for row in inner] == [
        ("stem", [32]),
        ("blocks_0", [302]),
        ("blocks_1", [3002]),
    ]
    assert not [row for row in rows if row.target.startswith("head")]
    assert root.self_ns.tolist() == [0]
    # Within what is chosen, all is timed.
    assert [row.name for row in inner[0].rows] == ["stem_linear", "spend", "spend_1", "add"]


def test_leaf_of_a_path_closes_that_one_alone() -> None:
    report = run(Model(), leaf="blocks.0")
    names = names_of(report)
    assert "blocks_0" in names
    assert "blocks_1_linear" in names
    assert "blocks_0_linear" not in names


@pytest.mark.parametrize("name", ["blocks.*", "*s.?", "blocks.[01]", "b*"])
def test_globs_of_paths(name: str) -> None:
    report = run(Model(), leaf=name)
    assert {"blocks_0", "blocks_1", "stem_linear"} <= set(names_of(report))


def test_letters_of_names_count() -> None:
    with pytest.raises(NoSuchModuleError, match="leaf= has 'block'"):
        instrument(Model(), leaf="block")


def test_leaf_of_the_root_times_the_model_as_a_whole() -> None:
    report = run(Model(), leaf=Model)
    assert [(row.name, row.ns.tolist(), row.depth) for row in report.rows] == [("Model", [3336], 0)]
    (info,) = report.closed
    assert (info.module, info.reason) == ("", "it is among leaf=")
    assert info.advice == "take it out of leaf= to open it"


def test_a_subclass_is_meant_by_its_base() -> None:
    report = run(nn.Sequential(ClosedModel(), Block()), leaf=Model)
    assert [row.ns.tolist() for row in report.rows if row.name == "_0"] == [[3336]]
    assert names_of(report) == ["_0", "_1_linear"]


@pytest.mark.parametrize(
    "inline",
    [nn.Linear, "Linear", "torch.nn.Linear", "torch.nn.modules.linear.Linear", "*.linear",
     lambda path, module: type(module) is nn.Linear],
    ids=["class", "name", "torch.nn", "full name", "paths", "predicate"],
)  # fmt: skip
def test_inline_opens_modules_of_torch(inline: Any) -> None:
    torch.manual_seed(0)
    report = run(Model(), inline=inline)
    functions = [row.target for row in report.rows if row.op == "call_function"]
    num_opened = 3 if inline == "*.linear" else 4
    assert sum(target.endswith("linear") for target in functions) == num_opened
    assert "stem_linear" not in names_of(report)


def test_inline_opens_modules_of_torch_within_a_frame() -> None:
    torch.manual_seed(0)
    report = run(ClosedModel(), inline=nn.ReLU)
    (relu,) = [row for row in report.rows if row.target.rpartition(".")[2] == "relu"]
    assert relu.op == "call_function"
    assert relu.depth == 2


def test_leaf_wins_over_inline() -> None:
    report = run(Model(), inline=nn.Linear, leaf="stem.linear")
    assert "stem_linear" in names_of(report)
    assert "blocks_0_linear" not in names_of(report)


def test_inline_of_what_torch_cannot_trace_stays_closed_and_equal() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.GRU(4, 4))
    report = run(model, inline=[nn.BatchNorm1d, nn.GRU])
    assert report.num_runs == 1


def test_only_leaves_the_rest_untouched() -> None:
    model = ClosedModel()
    seen: list[tuple[str, list[str]]] = []

    def watch(path: str) -> Callable[..., None]:
        return lambda *_: seen.append(
            (path, [name for name, m in model.named_modules() if "_compiled_call_impl" in vars(m)])
        )

    model.stem.register_forward_hook(watch("stem"))
    model.head.register_forward_hook(watch("head"))
    timed = instrument(model, only="blocks.1")
    timed(X)
    assert [path for path, _ in seen] == ["stem", "head"]
    for _, marked in seen:
        assert marked
        assert all(name == "blocks.1" or name.startswith("blocks.1.") for name in marked)
    assert {row.name for row in timed.report().rows if row.depth == 1} == {"blocks_1"}


def test_only_what_is_not_called_has_no_row() -> None:
    class Unused(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x)

    report = run(Unused(), only="stem")
    assert [row.depth for row in report.rows] == [0]


def test_only_the_root_is_all() -> None:
    assert names_of(run(Model(), only=Model)) == names_of(run(Model()))


def test_only_leaves_of_torch() -> None:
    report = run(Model(), only=nn.Linear)
    assert names_of(report, 1) == [
        "stem_linear",
        "blocks_0_linear",
        "blocks_1_linear",
        "head_0",
    ]
    assert report.rows[0].self_ns.tolist() == [3336]


def test_only_modules_that_are_one_in_another() -> None:
    report = run(Model(), only=["stem", "stem.spender"])
    assert [(row.depth, row.name) for row in report.rows if row.op == "call_module"][:2] == [
        (0, "Model"),
        (1, "stem"),
    ]
    assert [row.ns.tolist() for row in report.rows if row.name == "stem"] == [[32]]


def test_only_a_module_that_is_replaced() -> None:
    model = Model()
    timed = instrument(model, only="stem", clock=toys.still_clock)
    timed(X)
    model.stem = Block(70)
    timed(X)
    (row,) = [row for row in timed.report().rows if row.name == "stem"]
    assert row.ns.tolist() == [32, 72]
    assert closed.marks_of(model) == []


def test_options_go_with_copies_and_profiles() -> None:
    model = Model()
    timed = instrument(model, leaf=Block, clock=toys.still_clock)
    twin = copy.deepcopy(timed)
    twin(X)
    assert "spend" not in [row.name for row in twin.report().rows]
    with profile(model, only="stem", clock=toys.still_clock) as p:
        model(X)
    assert names_of(p.report(), 1) == ["stem"]


@pytest.mark.parametrize("option", ["leaf", "inline", "only"])
@pytest.mark.parametrize(
    ("choice", "wanted", "near"),
    [
        ("stemm", "'stemm'", "'stem'"),
        ("blocks.2", "'blocks.2'", "'blocks.0', 'blocks.1'"),
        ("Blok", "'Blok'", "'Block'"),
        ("torch.nn.Linaer", "'torch.nn.Linaer'", "'torch.nn.Linear'"),
        (["stem", "Blok"], "'Blok'", "'Block'"),
        (nn.LinearReLU if hasattr(nn, "LinearReLU") else nn.Bilinear, "'Bilinear'", "'Linear'"),
    ],
    ids=lambda value: str(value) if isinstance(value, (str, list)) else "class",
)
def test_names_that_fit_nothing_are_told_with_near_ones(
    option: str, choice: Any, wanted: str, near: str
) -> None:
    with pytest.raises(NoSuchModuleError) as caught:
        instrument(Model(), **{option: choice})
    message = str(caught.value)
    assert message.startswith(f"{option}= has {wanted}, but no module of the model (Model) has")
    listed = message.partition("near it are ")[2]
    assert near.split(", ")[0] in listed
    assert all(name in listed for name in near.split(", "))
    assert isinstance(caught.value, LookupError)
    assert isinstance(caught.value, FxInstrumentError)


def test_a_name_that_is_near_to_nothing_is_told_alone() -> None:
    with pytest.raises(NoSuchModuleError, match=r"that path or is of that class$"):
        instrument(Model(), leaf="zzzzzzzz")


@pytest.mark.parametrize("option", ["leaf", "inline", "only"])
@pytest.mark.parametrize("wrong", [3, [3], (Block, None), int, [torch.relu], b"stem"])
def test_what_is_no_choice_is_refused(option: str, wrong: Any) -> None:
    with pytest.raises(TypeError, match=f"{option}= takes names, classes of modules, or one"):
        instrument(Model(), **{option: wrong})


@pytest.mark.parametrize("wrong", ["", "call", None, 3])
def test_frames_is_one_of_two_words(wrong: Any) -> None:
    with pytest.raises(ValueError, match='frames is "calls" to time the torch calls of frames, or'):
        instrument(Model(), frames=wrong)


def test_an_error_leaves_the_model_as_it_was() -> None:
    model = Model()
    before = {path: (type(module), dict(vars(module))) for path, module in model.named_modules()}
    with pytest.raises(NoSuchModuleError):
        instrument(model, only="no such")
    assert before == {
        path: (type(module), dict(vars(module))) for path, module in model.named_modules()
    }


def test_no_choice_chooses_nothing() -> None:
    assert names_of(run(Model(), leaf=(), inline=[], only=())) == names_of(run(Model()))
