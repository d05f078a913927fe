"""The facts of rows: what they compute, move and hold, and where they stand."""

from __future__ import annotations

import collections
import dataclasses
import functools
import inspect
import random
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import closed_toys as closed
import numpy as np
import pytest
import torch
import torchvision
import toys
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import fx_instrument
from fx_instrument import (
    ArgumentsNotKnownError,
    NotInitializedError,
    ProfileError,
    Report,
    RowFacts,
    instrument,
    profile,
)
from fx_instrument.extents import distinct_bytes

X = torch.ones(5, 3)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def annotated(model: nn.Module, *args: Any, **kwargs: Any) -> Report:
    """Return a report of one call, of which the facts were gathered."""
    m = instrument(model)
    m(*args, **kwargs)
    fx_instrument.annotate(m, *args, **kwargs)
    return fx_instrument.report(m)


def facts_of(model: nn.Module, *args: Any, **kwargs: Any) -> dict[str, RowFacts]:
    return {row.name: row.facts for row in annotated(model, *args, **kwargs).rows}


class Applies(nn.Module):
    """Applies a function, whose statements are those of this file."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


def facts_of_function(function: Callable[..., Any], *args: torch.Tensor) -> RowFacts:
    """Return the facts of the last row of ``function`` that takes time."""
    rows = [row for row in annotated(Applies(function).eval(), *args).rows if row.is_timed]
    return rows[-1].facts


# What rows work on


def test_layer_has_its_shapes_parameters_operations_and_bytes() -> None:
    facts = facts_of(nn.Sequential(nn.Linear(3, 4)).eval(), X)["_0"]
    assert facts == RowFacts(
        class_name="torch.nn.modules.linear.Linear",
        shapes=((5, 4),),
        dtypes=("float32",),
        devices=("cpu",),
        memory_formats=("contiguous",),
        num_params=3 * 4 + 4,
        param_bytes=64,
        flops=2 * 5 * 3 * 4,
        has_all_flops=True,
        bytes_read=4 * (5 * 3 + 3 * 4 + 4),
        bytes_written=4 * 5 * 4,
        output_bytes=80,
        live_bytes=4 * (5 * 3 + 5 * 4),
        peak_bytes=140,
    )


def test_strided_and_grouped_convolution_has_the_operations_of_its_groups() -> None:
    conv = nn.Conv2d(4, 8, 3, stride=2, groups=2, padding=1)
    x = torch.ones(2, 4, 8, 8).to(memory_format=torch.channels_last)
    facts = facts_of(nn.Sequential(conv), x)["_0"]
    assert facts.shapes == ((2, 8, 4, 4),)
    assert facts.memory_formats == ("channels_last",)
    # Each output value takes a multiply-add of 3 x 3 values of the 2 channels of its group.
    assert facts.flops == 2 * (2 * 8 * 4 * 4) * (2 * 3 * 3)
    assert facts.num_params == 8 * 2 * 3 * 3 + 8
    assert facts.bytes_read == 4 * (2 * 4 * 8 * 8 + 8 * 2 * 3 * 3 + 8)
    assert facts.bytes_written == 4 * 2 * 8 * 4 * 4


@pytest.mark.parametrize(
    ("function", "shapes", "flops"),
    [
        (torch.matmul, [(2, 3), (3, 4)], 2 * 2 * 3 * 4),
        (lambda a, b: a @ b, [(2, 3), (3, 4)], 48),
        (torch.bmm, [(2, 4, 5), (2, 5, 3)], 2 * 2 * 4 * 5 * 3),
        (torch.addmm, [(2, 4), (2, 3), (3, 4)], 48),
        (torch.baddbmm, [(2, 4, 3), (2, 4, 5), (2, 5, 3)], 240),
        (lambda a, b: torch.einsum("ij,jk->ik", a, b), [(2, 3), (3, 4)], 48),
        (functional.linear, [(5, 3), (4, 3), (4,)], 120),
        (functional.conv1d, [(1, 2, 6), (3, 2, 3)], 2 * 3 * 4 * 2 * 3),
    ],
)
def test_products_have_two_operations_a_multiply_add(
    function: Callable[..., Any], shapes: list[tuple[int, ...]], flops: int
) -> None:
    args = [torch.ones(shape) for shape in shapes]
    facts = facts_of_function(function, *args)
    assert facts.flops == flops
    assert facts.has_all_flops
    assert facts.bytes_read == 4 * sum(arg.numel() for arg in args)
    assert facts.bytes_written == facts.output_bytes == 4 * function(*args).numel()


@pytest.mark.parametrize(
    "function",
    [
        torch.relu,
        torch.exp,
        lambda x: x + 1,
        lambda x: x > 0,
        lambda x: x.sum(),
        lambda x: x.softmax(-1),
        lambda x: x.sort(),
        lambda x: x.cumsum(0),
        lambda x: functional.layer_norm(x, (3,)),
        lambda x: torch.mv(x, x[0]),
        lambda x: torch.fft.fft(x),
        lambda x: torch.linalg.norm(x),
        lambda x: functional.dropout(x, 0.5, training=True),
    ],
)
def test_what_the_registry_has_no_formula_for_is_unknown_and_not_0(
    function: Callable[..., Any],
) -> None:
    facts = facts_of_function(function, X)
    assert facts.flops is None
    assert not facts.has_all_flops


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("upsampling", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_operations_are_those_that_run(upsampling: str, mode: Callable[[], Any]) -> None:
    # Torch can write them by many others, for compilers.
    x = torch.ones(1, 2, 3, 4)
    with mode():
        facts = facts_of_function(
            lambda x: functional.interpolate(x, scale_factor=2, mode=upsampling), x
        )
    assert (facts.bytes_read, facts.bytes_written) == (4 * 24, 4 * 24 * 4)


@pytest.mark.parametrize(
    "function",
    [
        torch.zeros_like,
        torch.ones_like,
        lambda x: torch.full_like(x, 2.0),
        torch.rand_like,
        torch.randn_like,
        lambda x: torch.randint_like(x, 3),
        lambda x: x.new_zeros(5, 3),
        lambda x: x.new_ones(5, 3),
        lambda x: x.new_full((5, 3), 2.0),
    ],
)
def test_what_only_gives_size_and_dtype_is_not_read(function: Callable[..., Any]) -> None:
    facts = facts_of_function(function, X)
    assert (facts.bytes_read, facts.bytes_written) == (0, 4 * 5 * 3)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.view(15),
        lambda x: x.t(),
        lambda x: x[1:, None],
        lambda x: x.expand(2, 5, 3),
        lambda x: x.unbind(0),
        lambda x: torch.split(x, 2),
        lambda x: x.detach(),
        lambda x: x.squeeze_(),
    ],
)
def test_view_computes_and_moves_nothing(function: Callable[..., Any]) -> None:
    facts = facts_of_function(function, X.clone())
    assert (facts.flops, facts.has_all_flops) == (0, True)
    assert (facts.bytes_read, facts.bytes_written) == (0, 0)
    assert facts.live_bytes == facts.peak_bytes == X.nbytes


@pytest.mark.parametrize(
    ("function", "num_read", "num_written"),
    [
        (lambda x: x.clone(), 60, 60),
        (lambda x: x.t().contiguous(), 60, 60),
        (lambda x: x.to(torch.float64), 60, 120),
        (lambda x: torch.cat([x, x]), 60, 120),
        (lambda x: torch.stack([x, x + 0]), 120, 120),
        (lambda x: functional.pad(x, (1, 1)), None, None),
        (lambda x: x[torch.tensor([1, 1])], 24 + 16, 24),
        (lambda x: torch.zeros(3), 0, 12),
        (lambda x: torch.empty(3), 0, 0),
    ],
)
def test_what_only_moves_values_computes_nothing(
    function: Callable[..., Any], num_read: int | None, num_written: int | None
) -> None:
    facts = facts_of_function(function, X)
    assert (facts.flops, facts.has_all_flops) == (0, True)
    if num_read is not None:
        assert (facts.bytes_read, facts.bytes_written) == (num_read, num_written)


def test_what_works_on_integers_and_truth_values_computes_nothing() -> None:
    facts = facts_of_function(lambda i: i + 1, torch.ones(4, dtype=torch.int64))
    assert (facts.flops, facts.has_all_flops) == (0, True)
    assert (facts.bytes_read, facts.bytes_written) == (32, 32)
    assert facts_of_function(torch.logical_not, torch.ones(4, dtype=torch.bool)).flops == 0


def test_operation_in_place_reads_and_writes_its_tensor_and_takes_no_memory() -> None:
    x = X.clone()
    facts = facts_of_function(lambda x: x.mul_(2), x)
    assert (facts.bytes_read, facts.bytes_written) == (60, 60)
    assert (facts.live_bytes, facts.peak_bytes) == (60, 60)
    assert facts_of_function(lambda x: x.zero_(), x).bytes_read == 0


@pytest.mark.parametrize(
    ("views", "num_bytes"),
    [
        (lambda x: (x, x.t()), 60),
        (lambda x: (x, x[0], x[:, ::2], x.view(-1), x.view(torch.int32)), 60),
        (lambda x: (x[:2], x[1:]), 60),
        (lambda x: (x[:1], x[2:]), 40),
        (lambda x: (x[:, :3], x[:, 2:]), 60),
        (lambda x: (x[:, :2], x[:, 3:]), 48),
        (lambda x: (x[:, ::2], x[:, 1::2]), 60),
        (lambda x: (x[::2, ::2],), 24),
        (lambda x: (x[:, :1].expand(3, 9), x[:, 0]), 12),
        (lambda x: (x.view(-1).unfold(0, 4, 1),), 60),
        (lambda x: (x.as_strided((2, 3, 2), (4, 3, 1)),), 40),
        (lambda x: (x[:0], x[:, :0]), 0),
        (lambda x: (x, x.clone()), 120),
    ],
)
def test_bytes_that_several_views_show_count_once(
    views: Callable[[torch.Tensor], tuple[torch.Tensor, ...]], num_bytes: int
) -> None:
    assert distinct_bytes(views(torch.ones(3, 5))) == num_bytes


def test_operation_on_two_views_reads_their_bytes_once() -> None:
    assert facts_of_function(lambda x: torch.mm(x, x.t()), torch.ones(10, 10)).bytes_read == 400


def test_embedding_reads_the_rows_that_it_gives() -> None:
    facts = facts_of(nn.Sequential(nn.Embedding(1000, 4)), torch.tensor([1, 2, 2]))["_0"]
    assert facts.flops == 0
    assert facts.bytes_read == 3 * 8 + 3 * 16
    assert facts.bytes_written == 3 * 16
    assert facts.num_params == 4000


def test_batch_normalisation_that_trains_writes_its_statistics() -> None:
    eval_facts = facts_of(nn.Sequential(nn.BatchNorm1d(3)).eval(), X)["_0"]
    assert eval_facts.bytes_read == 60 + 4 * 12
    assert eval_facts.bytes_written == 60
    train_facts = facts_of(nn.Sequential(nn.BatchNorm1d(3)).train(), X)["_0"]
    # The counter of batches is read and written; mean and deviation of the batch are written.
    assert train_facts.bytes_read == 60 + 4 * 12 + 8
    assert train_facts.bytes_written == 60 + 2 * 12 + 8 + 2 * 12


def test_attention_has_the_operations_that_torch_counts() -> None:
    q = torch.ones(1, 2, 6, 4)
    with FlopCounterMode(display=False) as counter:
        functional.scaled_dot_product_attention(q, q, q)
    facts = facts_of_function(functional.scaled_dot_product_attention, q, q, q)
    assert (facts.flops or 0) == counter.get_total_flops()
    assert facts.flops != 0
    assert facts.bytes_read == q.nbytes


def test_what_gives_no_tensor_has_no_shape_and_computes_nothing() -> None:
    facts = facts_of_function(lambda x: x.size(), X)
    assert facts.shapes == facts.dtypes == facts.devices == ()
    assert (facts.flops, facts.output_bytes) == (0, 0)


@dataclasses.dataclass
class Pair:
    first: torch.Tensor
    second: list[torch.Tensor]


class GivesContainers(nn.Module):
    def __init__(self, is_dataclass: bool) -> None:
        super().__init__()
        self.is_dataclass = is_dataclass

    def forward(self, x: torch.Tensor) -> Any:
        half = x.half()
        if self.is_dataclass:
            return Pair(x, [half, x])
        return {"first": x, "second": [half, x], "name": "none"}


@pytest.mark.parametrize("is_dataclass", [True, False])
def test_tensors_in_containers_are_told_in_order(is_dataclass: bool) -> None:
    facts = facts_of(GivesContainers(is_dataclass), X)["output"]
    assert facts.shapes == ((5, 3), (5, 3), (5, 3))
    assert facts.dtypes == ("float32", "float16", "float32")
    assert facts.output_bytes == 60 + 30


def test_sparse_and_nested_tensors_have_facts() -> None:
    facts = facts_of(Applies(lambda x: x.to_sparse()).eval(), X)
    last = [each for each in facts.values() if each.shapes == ((5, 3),)][-1]
    assert last.memory_formats == ("strided",)


# Totals


TORCHVISION = [
    "alexnet", "densenet121", "efficientnet_b0", "mobilenet_v3_small", "resnet18",
    "shufflenet_v2_x0_5", "squeezenet1_0", "swin_t", "vit_b_32",
]  # fmt: skip


def torchvision_model(name: str) -> tuple[nn.Module, torch.Tensor]:
    size = {"vit_b_32": 224}.get(name, 64)
    return getattr(torchvision.models, name)().eval(), torch.ones(1, 3, size, size)


def timm_model(name: str) -> tuple[nn.Module, torch.Tensor]:
    timm = pytest.importorskip("timm")
    model = timm.create_model(name, img_size=96) if "vit" in name else timm.create_model(name)
    return model.eval(), torch.ones(1, 3, 96, 96)


TIMM = ["vit_tiny_patch16_224", "tf_efficientnet_b0", "resnet10t", "convnext_atto"]

SMALL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "vocab_size": 64, "max_position_embeddings": 64,
}  # fmt: skip

TRANSFORMERS = {
    "BertModel": ("BertConfig", SMALL),
    "LlamaForCausalLM": ("LlamaConfig", {**SMALL, "num_key_value_heads": 2}),
    "GPT2Model": (
        "GPT2Config",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "n_positions": 64},
    ),
    "MixtralModel": (
        "MixtralConfig",
        {**SMALL, "num_key_value_heads": 2, "num_local_experts": 4},
    ),
}


def transformers_model(name: str) -> tuple[nn.Module, torch.Tensor]:
    transformers = pytest.importorskip("transformers")
    config, values = TRANSFORMERS[name]
    model = getattr(transformers, name)(getattr(transformers, config)(**values))
    return model.eval(), torch.arange(12)[None]


MODELS = {
    **{name: functools.partial(torchvision_model, name) for name in TORCHVISION},
    **{name: functools.partial(timm_model, name) for name in TIMM},
    **{name: functools.partial(transformers_model, name) for name in TRANSFORMERS},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_operations_and_parameters_of_rows_add_up_to_those_of_the_model(name: str) -> None:
    model, x = MODELS[name]()
    with torch.no_grad():
        with FlopCounterMode(display=False) as counter:
            model(x)
        m = instrument(model)
        m(x)
        m(x)
        m.reset()
        m(x)
        m.annotate(x)
    report = fx_instrument.report(m)
    rows = [row for row in report.rows if row.num_calls]
    ran_below = {id(row) for row in rows if any(below.num_calls for below in row.rows)}
    leaves = [row for row in rows if id(row) not in ran_below]
    assert all(row.facts.shapes is not None for row in rows)
    total = counter.get_total_flops()
    assert total > 0
    assert sum(row.facts.flops or 0 for row in rows if row.depth == 0) == total
    assert sum(row.facts.flops or 0 for row in leaves) == total
    # Each parameter is of the row that calls its module or reads it, shared ones of several.
    held: dict[str, int] = {}
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for row in leaves:
        if row.op == "call_module":
            path = "" if row.is_model else row.target
            held[path] = row.facts.num_params or 0
            assert held[path] == sum(p.numel() for p in model.get_submodule(path).parameters())
        elif row.op == "get_attr" and row.target in parameters:
            assert row.facts.num_params == model.get_parameter(row.target).numel()
            assert row.facts.param_bytes == model.get_parameter(row.target).nbytes


class StorageWatch(TorchDispatchMode):
    """Knows the bytes of the storages that operations have made and that are still alive."""

    def __init__(self, *known: torch.Tensor) -> None:
        super().__init__()
        self.known = {tensor.untyped_storage()._cdata for tensor in known}
        self.alive: dict[int, int] = {}
        self.peak_bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        for tensor in output if isinstance(output, (tuple, list)) else [output]:
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                key = storage._cdata
                if key not in self.known and key not in self.alive:
                    self.alive[key] = storage.nbytes()
                    weakref.finalize(storage, self.alive.pop, key)
        self.peak_bytes = max(self.peak_bytes, sum(self.alive.values()))
        return output


MEMORY_MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "chain": (
        lambda: nn.Sequential(nn.Linear(3, 50), nn.ReLU(), nn.Linear(50, 2)),
        lambda: X.clone(),
    ),
    "in place": (
        lambda: nn.Sequential(nn.Linear(3, 50), nn.ReLU(inplace=True), nn.Flatten()),
        lambda: X.clone(),
    ),
    "views": (
        lambda: Applies(lambda x: (x * 2).view(3, 5).t()[1:].unsqueeze(0) + 1),
        lambda: X.clone(),
    ),
    "output is the input": (lambda: Applies(lambda x: x.add_(1).view(15)), lambda: X.clone()),
    "frame": (lambda: closed.Gate().eval(), lambda: X.clone()),
    "resnet18": (lambda: torchvision.models.resnet18().eval(), lambda: torch.ones(1, 3, 32, 32)),
    "squeezenet1_0": (
        lambda: torchvision.models.squeezenet1_0().eval(),
        lambda: torch.ones(1, 3, 64, 64),
    ),
}


@pytest.mark.parametrize("has_grad", [False, True])
@pytest.mark.parametrize("name", MEMORY_MODELS)
def test_peak_is_that_of_all_storages_alive(name: str, has_grad: bool) -> None:
    make_model, make_input = MEMORY_MODELS[name]
    model, x = make_model(), make_input()
    with torch.set_grad_enabled(has_grad):
        watch = StorageWatch(x, *model.parameters(), *model.buffers())
        with watch:
            model(x)
        report = annotated(model, make_input())
    peak = max(row.facts.peak_bytes or 0 for row in report.rows)
    assert peak == x.nbytes + watch.peak_bytes


def test_what_is_alive_after_the_last_row_is_input_and_output() -> None:
    with torch.no_grad():
        facts = facts_of(nn.Sequential(nn.Linear(3, 50), nn.ReLU(), nn.Linear(50, 2)).eval(), X)
    assert [facts[name].live_bytes for name in ("_0", "_1", "_2")] == [1060, 1060, 100]
    assert [facts[name].peak_bytes for name in ("_0", "_1", "_2")] == [1060, 2060, 1100]


# Rows that run several times, in several ways


class CallsTwice(nn.Module):
    def __init__(self, is_closed: bool) -> None:
        super().__init__()
        self.part = nn.Linear(3, 3)
        self.is_closed = is_closed
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_closed:
            self.count += 1
        y = self.part(x)
        return self.part(y[:2])


def test_two_calls_of_a_module_in_a_graph_are_two_rows() -> None:
    facts = facts_of(CallsTwice(is_closed=False), X)
    assert facts["part"].shapes == ((5, 3),)
    assert facts["part_1"].shapes == ((2, 3),)
    assert (facts["part"].flops, facts["part_1"].flops) == (90, 36)
    assert facts["part"].line == line_of(CallsTwice.forward, "y = self.part(x)")
    assert facts["part_1"].line == line_of(CallsTwice.forward, "return self.part(y[:2])")


def test_calls_of_a_module_on_two_lines_of_a_frame_are_two_rows() -> None:
    facts = facts_of(CallsTwice(is_closed=True), X)
    assert [facts[name].flops for name in ("part", "part_1")] == [90, 36]
    assert [facts[name].bytes_read for name in ("part", "part_1")] == [
        4 * (15 + 9 + 3),
        4 * (6 + 9 + 3),
    ]
    assert [facts[name].shapes for name in ("part", "part_1")] == [((5, 3),), ((2, 3),)]
    assert facts["part"].line == line_of(CallsTwice.forward, "y = self.part(x)")
    assert facts["part_1"].line == line_of(CallsTwice.forward, "return self.part(y[:2])")


def test_loop_in_a_frame_is_one_row_with_the_sum_of_its_calls() -> None:
    model = closed.Loop(nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        model.part.weight.fill_(2)
    report = annotated(model, torch.ones(1, 1))
    row = next(row for row in report.rows if row.name == "part")
    assert row.num_calls == 7
    assert row.facts.flops == 7 * 2
    assert row.facts.file == inspect.getsourcefile(closed.Loop)
    root = report.rows[0].facts
    assert root.flops == 14
    assert not root.has_all_flops  # the sums


def test_a_frame_holds_what_its_rows_hold() -> None:
    report = annotated(closed.Frame(nn.Linear(3, 4), closed.Frame(nn.Linear(4, 2))), X)
    facts = {row.name: row.facts for row in report.rows}
    frame = facts["Frame"]
    assert frame.flops == 5 * 2 * (3 * 4 + 4 * 2)
    assert frame.has_all_flops
    assert frame.num_params == 16 + 10
    below = [facts["parts_0"], facts["parts_1"]]
    assert frame.bytes_read == sum(each.bytes_read or 0 for each in below)
    assert facts["parts_1_parts_0"].flops == facts["parts_1"].flops == 80


class BySize(nn.Module):
    """Has a graph for each size of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0 and x.shape[0] > 2:
            return self.part(x)
        return self.part(x) + 1


class Trains(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.norm(self.linear(x)))


class AsksForMode(Trains):
    """Has a graph for each of its modes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            return self.norm(self.linear(x))
        return self.norm(self.linear(x)) * 2


def test_each_variant_has_facts_of_its_own() -> None:
    m = instrument(AsksForMode())
    m.train()
    m(X)
    m.annotate(X)
    trained = {row.name: row.facts for row in m.report().rows}
    m.eval()
    m.annotate(X)
    m.reset()
    m(X)
    rows = {row.name: row.facts for row in m.report().rows}
    assert trained["norm"].bytes_written != rows["norm"].bytes_written
    assert trained["linear"].flops == rows["linear"].flops
    m.train()
    m(X)
    both = {row.name: row.facts for row in m.report().rows}
    assert both["norm"].bytes_written is None
    assert both["norm"].shapes == ((5, 3),)
    assert both["linear"].flops == 90


def test_row_with_runs_of_a_graph_of_which_nothing_was_gathered_is_unknown() -> None:
    m = instrument(AsksForMode().train())
    m(X)
    m.eval()
    m(X)
    m.annotate(X)
    rows = {row.name: row.facts for row in m.report().rows}
    assert rows["norm"].flops is rows["norm"].bytes_read is rows["linear"].flops is None
    # It has the same parameters in any graph.
    assert rows["norm"].num_params == 6
    m.train()
    m.annotate(X)
    rows = {row.name: row.facts for row in m.report().rows}
    assert rows["linear"].flops == 2 * 5 * 3 * 3


def test_rows_of_a_graph_within_a_frame_have_facts_in_the_mode_of_the_call() -> None:
    model = closed.Frame(BySize().eval())
    with torch.no_grad():
        m = instrument(model)
        for _ in range(3):
            m(X)
        m.reset()
        m(X)
        m.annotate(X)
    for row in m.report().rows:
        if row.num_calls:
            assert row.facts.shapes is not None, row


def test_graphs_that_annotating_has_made_serve_the_calls_that_follow() -> None:
    model = closed.Frame(BySize().eval())
    with torch.no_grad():
        m = instrument(model)
        m.annotate(X)
        m(X)
        m(X)
    report = m.report()
    assert [info.num_runs for info in report.variants if info.module == "parts.0"] == [2]
    assert all(row.facts.shapes is not None for row in report.rows if row.num_calls)


def test_memory_is_not_known_of_a_run_of_which_a_graph_is_made() -> None:
    model = closed.Frame(BySize().eval())
    with torch.no_grad():
        m = instrument(model)
        m.annotate(X)
        m(X)
        first = {row.name: row.facts for row in m.report().rows if row.num_calls}
        m.annotate(X)
    again = {row.name: row.facts for row in m.report().rows if row.num_calls}
    assert all(facts.live_bytes is facts.peak_bytes is None for facts in first.values())
    assert again["parts_0_part"].live_bytes == again["parts_0_part"].peak_bytes == 60 + 80
    for name, facts in again.items():
        assert dataclasses.replace(facts, live_bytes=None, peak_bytes=None) == first[name]


def test_arguments_by_name_alone() -> None:
    linear = facts_of(Trains().eval(), x=X)["linear"]
    assert (linear.flops, linear.num_params) == (90, 12)


# Where rows stand


def line_of(function: Any, text: str) -> int:
    """Return the number of the line of ``function`` that holds ``text``."""
    lines, start = inspect.getsourcelines(function)
    (found,) = [start + index for index, line in enumerate(lines) if text in line]
    return found


def decorate(forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def decorated(self: nn.Module, *args: Any) -> Any:
        return forward(self, *args)

    return decorated


def helper(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x)


class Stands(nn.Module):
    """Makes calls from statements of every kind."""

    def __init__(self, is_closed: bool) -> None:
        super().__init__()
        self.is_closed = is_closed
        self.count = 0
        self.body = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.ReLU6()))

    @decorate
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_closed:
            self.count += 1
        x = self.body(x)
        x = helper(x)
        x = (lambda y: torch.sin(y))(x)
        x = torch.cos(
            torch.exp(
                x,
            ),
        )
        return functional.softplus(x)


WHERE = {
    "Linear": (Stands.forward.__wrapped__, "self.body(x)"),
    "ReLU6": (Stands.forward.__wrapped__, "self.body(x)"),
    "tanh": (helper, "torch.tanh"),
    "sin": (Stands.forward.__wrapped__, "torch.sin"),
    "cos": (Stands.forward.__wrapped__, "torch.cos("),
    "exp": (Stands.forward.__wrapped__, "torch.exp("),
    "softplus": (Stands.forward.__wrapped__, "softplus"),
}


@pytest.mark.parametrize("is_closed", [False, True])
def test_call_stands_in_the_nearest_line_of_the_users_code(is_closed: bool) -> None:
    report = annotated(Stands(is_closed), X)
    found = {}
    for row in report.rows:
        cls = (row.facts.class_name or "").rpartition(".")[2]
        name = cls if row.op == "call_module" else row.target.rpartition(".")[2]
        if name in WHERE:
            assert row.facts.file == __file__
            found[name] = row.facts.line
    assert found == {name: line_of(*where) for name, where in WHERE.items()}


def test_torchvision_models_own_file_is_that_of_the_call() -> None:
    facts = facts_of(torchvision.models.resnet18().eval(), torch.ones(1, 3, 32, 32))
    resnet = inspect.getsourcefile(torchvision.models.resnet)
    assert facts["conv1"].file == resnet
    assert facts["layer1_0_conv1"].file == resnet
    assert facts["layer1_0_conv1"].line == line_of(
        torchvision.models.resnet.BasicBlock.forward, "self.conv1(x)"
    )


MADE = """
class Made(nn.Module):
    def forward(self, x):
        if self.is_closed:
            self.count = 1
        return torch.relu(x)

def made(x):
    return torch.relu(x)
"""


@pytest.mark.parametrize("is_closed", [False, True])
def test_code_without_a_file_is_not_known_or_that_of_its_caller(is_closed: bool) -> None:
    namespace: dict[str, Any] = {"nn": nn, "torch": torch, "__name__": "made_here"}
    exec(MADE, namespace)
    model = namespace["Made"]()
    model.is_closed = is_closed
    (row,) = [row for row in annotated(model, X).rows if "relu" in row.name]
    assert row.facts.file is row.facts.line is None
    facts = facts_of(Applies(namespace["made"]), X)["relu"]
    assert facts.file == __file__
    assert facts.line == line_of(Applies.forward, "self.function(")


def test_model_of_torch_alone_has_no_line_of_the_callers() -> None:
    facts = facts_of(nn.Sequential(nn.Linear(3, 3)), X)
    assert all(each.file is None and each.line is None for each in facts.values())


def test_item_of_what_a_layer_gives_stands_in_the_forward_that_takes_it() -> None:
    rows = annotated(nn.TransformerEncoderLayer(8, 2, 16).eval(), torch.ones(2, 1, 8)).rows
    (item,) = [row for row in rows if row.name == "getitem"]
    assert item.facts.class_name == "torch.nn.modules.transformer.TransformerEncoderLayer"
    assert item.module == ""


# The run in which they are gathered


class Draws(nn.Module):
    """Draws from every source of random numbers, and keeps the last draw."""

    def __init__(self) -> None:
        super().__init__()
        self.own = torch.Generator().manual_seed(1)
        self.random = random.Random(2)
        self.numpy = np.random.default_rng(3)
        self.norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(0.5)
        self.kept: list[Any] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.append(
            (
                torch.rand(1, generator=self.own).item(),
                self.random.random(),
                self.numpy.random(),
                random.random(),
                float(np.random.rand()),
            )
        )
        return self.drop(self.norm(x))


def states_of(model: nn.Module) -> list[Any]:
    assert isinstance(model, Draws)
    return [
        torch.get_rng_state().tolist(),
        model.own.get_state().tolist(),
        model.random.getstate(),
        repr(model.numpy.bit_generator.state),
        random.getstate(),
        repr(np.random.get_state()),
        [*model.kept],
        {name: value.clone().tolist() for name, value in model.state_dict().items()},
    ]


@pytest.mark.parametrize("num_calls", [0, 1, 3])
def test_random_states_buffers_and_attributes_are_as_before(num_calls: int) -> None:
    model = Draws().train()
    m = instrument(model)
    for _ in range(num_calls):
        m(X)
    before = states_of(model)
    m.annotate(X)
    assert states_of(model) == before
    assert int(model.norm.num_batches_tracked) == num_calls


def test_generator_of_the_users_among_the_arguments_is_as_before() -> None:
    def draw(x: torch.Tensor, generator: Any) -> torch.Tensor:
        return x + torch.rand(3, generator=generator)

    generator = torch.Generator().manual_seed(4)
    state = generator.get_state()
    instrument(Applies(draw)).annotate(X, generator)
    assert torch.equal(generator.get_state(), state)


def test_arguments_and_gradients_that_the_run_changes_are_as_before() -> None:
    class Changes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor, values: list[torch.Tensor]) -> torch.Tensor:
            with torch.no_grad():
                self.weight.mul_(3)
            x.view(15)[2:].add_(1)
            values[0].zero_()
            return x * self.weight

    model, x, values = Changes(), X.clone(), [torch.ones(2)]
    instrument(model).annotate(x, values)
    assert torch.equal(x, X)
    assert torch.equal(values[0], torch.ones(2))
    assert torch.equal(model.weight, torch.ones(3))
    assert model.weight.grad is None


class Holder:
    def __init__(self) -> None:
        self.values = [torch.ones(2)]


def test_containers_and_objects_among_the_arguments_are_as_before() -> None:
    def change(x: torch.Tensor, values: Any, named: Any, holder: Any) -> torch.Tensor:
        values[0].add_(1)
        values.append(x)
        named["a"]["b"] = x
        holder.values.append(x)
        holder.count = 3
        return x + 1

    values, named, holder = [torch.ones(2)], {"a": {}}, Holder()
    (first,) = holder.values
    instrument(Applies(change)).annotate(X, values, named, holder)
    assert [value.tolist() for value in values] == [[1, 1]]
    assert named == {"a": {}}
    assert vars(holder) == {"values": holder.values}
    assert holder.values == [first]


def test_model_that_its_first_call_initializes_is_refused_until_then() -> None:
    m = instrument(nn.Sequential(nn.LazyLinear(4)))
    with pytest.raises(NotInitializedError, match=r"initializes '0\.weight'; call the model once"):
        m.annotate(X)
    m(X)
    m.reset()
    m(X)
    m.annotate(X)
    assert m.report().rows[1].facts.num_params == 16


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("num_calls", [0, 2])
def test_hooks_fire_once_and_no_row_is_left(is_closed: bool, num_calls: int) -> None:
    model = Stands(is_closed)
    fired: collections.Counter[str] = collections.Counter()
    for name, module in model.named_modules():
        module.register_forward_pre_hook(lambda *_, name=name: fired.update([f"{name} before"]))
        module.register_forward_hook(lambda *_, name=name: fired.update([f"{name} after"]))
    m = instrument(model)
    for _ in range(num_calls):
        m(X)
    before = fx_instrument.report(m).num_runs if num_calls else 0
    fired.clear()
    m.annotate(X)
    assert set(fired.values()) == {1}
    assert len(fired) == 2 * 5
    m(X)
    report = fx_instrument.report(m)
    assert report.num_runs == report.num_seen == before + 1


def test_forward_runs_once() -> None:
    calls = []

    class Counts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            return x + len(calls)

    m = instrument(Counts())
    m(X)
    m(X)
    calls.clear()
    m.annotate(X)
    assert len(calls) == 1


def test_call_that_raises_leaves_no_facts_and_no_run() -> None:
    model = closed.Frame(nn.Linear(3, 3), closed.Fails())
    m = instrument(model)
    m(X)
    model.parts[1].error = ZeroDivisionError("this run fails")
    with pytest.raises(ZeroDivisionError, match="this run fails"):
        m.annotate(X)
    report = m.report()
    assert report.num_runs == report.num_seen == 1
    assert model.count == model.parts[1].count == 1
    assert all(row.facts.shapes is None for row in report.rows)
    model.parts[1].error = None
    m.annotate(X)
    assert all(row.facts.shapes is not None for row in m.report().rows)


def test_graph_that_raises_leaves_no_facts() -> None:
    m = instrument(toys.Fails())
    m(X, torch.tensor(False))
    with pytest.raises(ZeroDivisionError):
        m.annotate(X, torch.tensor(True))
    assert all(row.facts.shapes is None for row in m.report().rows)
    assert m.report().num_seen == 1


def test_facts_outlast_reset_and_copies_have_none() -> None:
    m = instrument(nn.Sequential(nn.Linear(3, 3)))
    m.annotate(X)
    m(X)
    m.reset()
    m(X)
    assert m.report().rows[1].facts.flops == 90


@pytest.mark.parametrize("keep", ["all", 2, "sketch"])
@pytest.mark.parametrize("is_closed", [False, True])
def test_facts_are_in_reports_whatever_is_kept(keep: Any, is_closed: bool) -> None:
    m = instrument(CallsTwice(is_closed), keep=keep)
    for _ in range(4):
        m(X)
    m.annotate(X)
    rows = m.report().rows
    assert sum(row.facts.flops or 0 for row in rows if row.name.startswith("part")) == 126


def test_paused_model_and_one_that_is_sampled_have_facts() -> None:
    m = instrument(Trains().eval(), sample_every=3)
    for _ in range(4):
        m(X)
    with m.paused():
        m.annotate(X)
    report = m.report()
    assert (report.num_runs, report.num_seen) == (2, 4)
    assert {row.name: row.facts.flops for row in report.rows}["linear"] == 90


def test_compiled_module_is_unknown_and_so_is_the_memory_after_it() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 4))
    model[0].compile(backend="eager")
    facts = facts_of(model, X)
    compiled, after = facts["_0"], facts["_1"]
    assert compiled.shapes == ((5, 3),)
    assert compiled.flops is compiled.bytes_read is compiled.bytes_written is None
    assert compiled.live_bytes is after.live_bytes is after.peak_bytes is None
    assert not compiled.has_all_flops
    assert (after.flops, after.bytes_read) == (120, 4 * (15 + 12 + 4))


# The last call


def test_report_with_facts_gathers_those_of_the_last_call_once() -> None:
    calls = []
    model = Trains().eval()
    model.linear.register_forward_hook(lambda *_: calls.append(1))
    m = instrument(model)
    m(torch.ones(2, 3))
    x = X.clone()
    m(x)
    calls.clear()
    assert {row.name: row.facts.flops for row in m.report(facts=True).rows}["linear"] == 90
    assert len(calls) == 1
    m.report(facts=True)
    assert len(calls) == 1
    m(torch.ones(2, 3))
    with pytest.raises(ArgumentsNotKnownError, match="a tensor that is gone; call annotate"):
        m.report(facts=True)


def test_facts_of_the_last_call_are_of_the_modes_of_that() -> None:
    m = instrument(Trains().eval())
    with torch.autocast("cpu", torch.bfloat16):
        m(X)
    assert {row.name: row.facts.dtypes for row in m.report(facts=True).rows}["linear"] == (
        "bfloat16",
    )
    m(X)
    m.reset()
    m(X)
    assert {row.name: row.facts.dtypes for row in m.report(facts=True).rows}["linear"] == (
        "float32",
    )


def change(x: torch.Tensor) -> None:
    x.add_(1)


@pytest.mark.parametrize(
    ("arguments", "after", "reason"),
    [
        (lambda: [torch.ones(5, 3)], change, "a tensor that was changed since"),
        (lambda: [{1, 2}], lambda _: None, "an argument of type set"),
        (lambda: [[torch.ones(2), {"a": object()}]], lambda _: None, "of type object"),
    ],
)
def test_arguments_that_may_be_other_ones_now_are_refused(
    arguments: Callable[[], Any], after: Callable[[Any], None], reason: str
) -> None:
    m = instrument(Applies(lambda value: X + 1))
    args = arguments()
    m(*args)
    after(args[0])
    with pytest.raises(ArgumentsNotKnownError, match=reason):
        m.report(facts=True)


def test_mode_that_has_changed_since_is_refused() -> None:
    m = instrument(Trains().train())
    m(X)
    m.eval()
    with pytest.raises(ArgumentsNotKnownError, match="in training mode, which the model is in no"):
        m.report(facts=True)
    m(X)
    assert m.report(facts=True).num_runs == 2


def test_model_that_was_never_called_has_no_last_call() -> None:
    with pytest.raises(ArgumentsNotKnownError, match="none has been recorded"):
        instrument(Trains()).report(facts=True)


# In place


def test_profiled_model_has_facts_in_the_block_and_after_it() -> None:
    model = Trains().eval()
    with profile(model) as p:
        model(X)
        p.annotate(X)
    assert {row.name: row.facts.flops for row in p.report().rows}["linear"] == 90
    with profile(model) as p:
        model(X)
    assert all(row.facts.flops is None for row in p.report().rows if row.op == "call_module")
    p.annotate(x=X)
    assert type(model) is Trains
    assert {row.name: row.facts.flops for row in p.report().rows}["linear"] == 90
    with profile(model) as p:
        model(X)
    assert {row.name: row.facts.flops for row in p.report(facts=True).rows}["linear"] == 90
    assert type(model) is Trains


def test_profile_that_ended_gathers_nothing_within_another() -> None:
    model = Trains().eval()
    with profile(model) as first:
        model(X)
    with profile(model) as second:
        model(X)
        with pytest.raises(ProfileError, match="is timed already"):
            first.annotate(X)
        second.annotate(X)
    with pytest.raises(ProfileError, match="has not been entered"):
        profile(model).annotate(X)
    first.annotate(X)
    assert type(model) is Trains


def test_profile_is_left_when_gathering_raises() -> None:
    model = closed.Fails()
    with profile(model) as p:
        model(X)
    model.error = ZeroDivisionError("this run fails")
    with pytest.raises(ZeroDivisionError):
        p.annotate(X)
    assert type(model) is closed.Fails
    with profile(model):
        pass


# What it costs when it is not asked for


def test_no_mode_and_no_mark_is_left() -> None:
    m = instrument(closed.Frame(nn.Linear(3, 3)))
    m.annotate(X)
    assert torch._C._len_torch_dispatch_stack() == torch._C._len_torch_function_stack() == 0
    assert closed.marks_of(m) == []
    assert sys.getprofile() is None


class Counted(nn.Module):
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.num_calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        return self.layer(x)


class SomeTimes(nn.Module):
    """Its second part runs as it is in the first calls, and as a graph in later ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Counted()
        self.second = nn.Sequential(nn.Linear(3, 4), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(int(torch.randint(1, 4, ()))):
            x = self.first(x)
        return self.second(x)


def test_rows_that_ran_as_they_are_and_as_a_graph_have_the_facts_of_the_graph() -> None:
    torch.manual_seed(0)
    timed = instrument(SomeTimes())
    for _ in range(20):
        timed(X)
    timed.annotate(X)
    report = timed.report()
    assert 0 < sum(variant.num_runs for variant in report.variants) < 20
    facts = {row["name"]: row for row in report.table(["name", "shape", "flops"]).to_dict()}
    assert (facts["second_0"]["shape"], facts["second_0"]["flops"]) == ("5x4", 2 * 5 * 3 * 4)
    assert facts["second_1"]["shape"] == "5x4"
