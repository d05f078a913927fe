"""instrument() on models of timm, which no one wrote with tracing in mind."""

import copy
import warnings

import pytest
import torch

import fx_instrument

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import timm

MODELS = {
    "convnext_atto": 64,
    "edgenext_xx_small": 64,
    "ghostnet_050": 64,
    "lcnet_035": 64,
    "mixer_s32_224": 224,
    "mobilenetv3_small_050": 64,
    "repvgg_a0": 64,
    "res2net50_26w_4s": 64,
    "vit_tiny_patch16_224": 224,
    "xcit_nano_12_p16_224": 224,
}


@pytest.mark.parametrize("is_training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", MODELS)
def test_a_call_is_that_of_the_model(name, is_training):
    torch.manual_seed(0)
    model = timm.create_model(name).train(is_training)
    twin = copy.deepcopy(model)
    x = torch.randn(2, 3, MODELS[name], MODELS[name])

    timed = fx_instrument.instrument(model)
    torch.manual_seed(1)
    output = timed(x)
    torch.manual_seed(1)
    expected = twin(x)
    assert torch.equal(output, expected)
    for (buffer_name, buffer), expected_buffer in zip(
        timed.named_buffers(), twin.buffers(), strict=True
    ):
        assert torch.equal(buffer, expected_buffer), buffer_name
    if is_training:
        output.sum().backward()
        expected.sum().backward()
        for parameter, expected_parameter in zip(
            timed.parameters(), twin.parameters(), strict=True
        ):
            if expected_parameter.grad is None:
                assert parameter.grad is None
            else:
                assert torch.equal(parameter.grad, expected_parameter.grad)
    report = fx_instrument.report(timed)
    assert report.num_runs == 1
    assert report.node_ns.sum(axis=1).tolist() == report.total_ns.tolist()
