"""What the machine computes and moves at most."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import fx_instrument
from fx_instrument import Machine, instrument


def test_a_machine_is_measured_once_for_a_dtype_and_number_of_threads() -> None:
    first = fx_instrument.machine()
    assert fx_instrument.machine(torch.float32) is first
    assert (first.dtype, first.num_threads) == ("float32", torch.get_num_threads())
    assert first.flops_per_second > 0
    assert first.bytes_per_second > 0


def test_a_machine_is_read_as_a_sentence() -> None:
    machine = Machine("float32", 2, 78e9, 5e9)
    assert str(machine) == (
        "float32, 2 threads: at most 78 GFLOP/s and 5 GB/s, from 15.6 FLOP/byte on bound by "
        "computing"
    )
    assert str(Machine("float64", 1, 2e9, 1e9)).startswith("float64, 1 thread: at most 2 GFLOP/s")


def test_a_report_holds_what_was_measured_with_its_number_of_threads() -> None:
    measured = fx_instrument.machine()
    m = instrument(nn.Linear(2, 2))
    m(torch.ones(1, 2))
    facts = fx_instrument.report(m).recording.environment
    assert facts["machine"]["float32"] == {
        "dtype": "float32",
        "num_threads": measured.num_threads,
        "flops_per_second": measured.flops_per_second,
        "bytes_per_second": measured.bytes_per_second,
    }
    assert json.loads(json.dumps(facts["machine"])) == facts["machine"]

    num_threads = torch.get_num_threads()
    fx_instrument.reset(m)
    try:
        torch.set_num_threads(num_threads + 1)
        m(torch.ones(1, 2))
        assert fx_instrument.report(m).recording.environment["machine"] == {}
    finally:
        torch.set_num_threads(num_threads)


def test_runs_with_several_numbers_of_threads_have_no_machine() -> None:
    fx_instrument.machine()
    num_threads = torch.get_num_threads()
    m = instrument(nn.Linear(2, 2))
    m(torch.ones(1, 2))
    try:
        torch.set_num_threads(num_threads + 1)
        m(torch.ones(1, 2))
    finally:
        torch.set_num_threads(num_threads)
    assert fx_instrument.report(m).recording.environment["machine"] == {}


def test_a_dtype_that_matrices_are_not_multiplied_in_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"torch does not have for torch.bool on this CPU"):
        fx_instrument.machine(torch.bool)
    with pytest.raises(TypeError, match=r"dtype is one of torch's, as torch.float32, got 'f'"):
        fx_instrument.machine("f")  # type: ignore[arg-type]


def test_a_measurement_leaves_the_random_state_and_grad_mode() -> None:
    state = torch.get_rng_state()
    fx_instrument.machine(torch.bfloat16)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()
