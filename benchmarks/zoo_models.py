"""The public models that the zoo benchmark goes through, each small and with random weights.

Knows nothing of instrumenting: it gives a name, how to build a model, and the inputs of its calls.
Nothing is downloaded; the configurations of transformers are written out here.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

Inputs = tuple[tuple[Any, ...], dict[str, Any]]

# The deviation of the noise on parameters that are all one number, such as heads that start at 0.
_NOISE = 0.02


@dataclasses.dataclass(frozen=True)
class Specimen:
    """One model of the zoo.

    Attributes:
        name: the collection it belongs to, a slash, and what it is called there.
        build_model: gives the model, on the CPU, in no particular mode.
        build_inputs: gives the arguments of its call number ``index``, from 0, in evaluation or
            training mode (``is_training``): the same shapes for each index, other values.
        has_input_gradients: whether the model works with inputs that need gradients.
    """

    name: str
    build_model: Callable[[], nn.Module]
    build_inputs: Callable[[int, bool], Inputs]
    has_input_gradients: bool = True

    @property
    def collection(self) -> str:
        """What comes before the slash."""
        return self.name.partition("/")[0]

    def build(self) -> nn.Module:
        """Return the model, always with the same weights, none of its parameters constant.

        Noise on what starts at 0 or 1 keeps a comparison from being about zeros alone.
        """
        seed_all(0)
        model = self.build_model()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.numel() and bool((parameter == parameter.reshape(-1)[0]).all()):
                    parameter.add_(torch.randn_like(parameter) * _NOISE)
        return model

    def inputs(self, index: int, *, is_training: bool) -> Inputs:
        """Return new inputs for call number ``index``: the same values each time."""
        seed_all(1000 + index)
        return self.build_inputs(index, is_training)


def seed_all(seed: int) -> None:
    """Start the random streams of torch, Python and numpy anew."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def specimens() -> dict[str, Specimen]:
    """Return every model of the zoo by name.

    Raises:
        ImportError: timm or transformers is not installed.
    """
    found = (*_torchvision(), *_timm(), *_transformers())
    return {specimen.name: specimen for specimen in found}


# One or more of each kind of model: what opens whole, what stays closed in part, each task.
FAST = (
    "torchvision/resnet18",
    "torchvision/googlenet",
    "torchvision/mobilenet_v3_small",
    "torchvision/shufflenet_v2_x0_5",
    "torchvision/vit_b_32",
    "torchvision/swin_t",
    "torchvision/lraspp_mobilenet_v3_large",
    "torchvision/ssdlite320_mobilenet_v3_large",
    "torchvision/fasterrcnn_mobilenet_v3_large_320_fpn",
    "torchvision/r3d_18",
    "torchvision/raft_small",
    "torchvision/quantized_resnet18",
    "timm/convnextv2_atto",
    "timm/tf_efficientnet_b0",
    "timm/levit_128s",
    "timm/mobilevit_xxs",
    "timm/efficientvit_m0",
    "timm/test_maxvit",
    "timm/tiny_vit_5m_224",
    "timm/test_vit",
    "hf/bert",
    "hf/bloom",
    "hf/clip",
    "hf/deberta_v2",
    "hf/funnel",
    "hf/gpt2",
    "hf/llama",
    "hf/longformer",
    "hf/mamba",
    "hf/mixtral",
    "hf/swin",
    "hf/t5",
    "hf/wav2vec2",
    "hf/whisper",
    "hf/xlnet",
)


def _images(side: int, batch: int | None = None) -> Callable[[int, bool], Inputs]:
    """Return inputs of one batch of images; by default 1 to evaluate, 2 to train."""

    def build(index: int, is_training: bool) -> Inputs:
        return (torch.randn(batch or 1 + is_training, 3, side, side),), {}

    return build


def _torchvision() -> Iterator[Specimen]:
    from torchvision import models

    for name in models.list_models():
        builder = models.get_model_builder(name)
        kind = builder.__module__.split(".")[2]
        if kind == "quantization":
            inputs = _TORCHVISION_INPUTS.get(name.removeprefix("quantized_"), _images(64))
            build = functools.partial(_build_int8, builder)
            yield Specimen(f"torchvision/{name}", build, inputs)
            name, kind = f"{name}_float", "classification"
        options = dict(_TORCHVISION_OPTIONS.get(kind, {}))
        options |= _TORCHVISION_OPTIONS.get(name, {})
        if "weights_backbone" in inspect.signature(builder).parameters:
            options["weights_backbone"] = None
        if kind == "vision_transformer":
            options["image_size"] = 28 if name.endswith("14") else 32
            inputs = _images(options["image_size"])
        else:
            plain_name = name.removeprefix("quantized_").removesuffix("_float")
            default = _TORCHVISION_INPUTS.get(kind, _images(64))
            inputs = _TORCHVISION_INPUTS.get(plain_name, default)
        build = functools.partial(builder, weights=None, **options)
        yield Specimen(f"torchvision/{name}", build, inputs)


def _build_int8(builder: Callable[..., nn.Module]) -> nn.Module:
    options = {}
    if builder.__name__ in ("googlenet", "inception_v3"):
        options["init_weights"] = False
    return builder(weights=None, quantize=True, **options)


def _images_with_targets(height: int, width: int) -> Callable[[int, bool], Inputs]:
    """Return inputs of detection models: a list of images and, to train, one of targets."""

    def build(index: int, is_training: bool) -> Inputs:
        images = [torch.rand(3, height, width), torch.rand(3, height - 8, width)]
        if not is_training:
            return (images,), {}
        corners = torch.rand(2, 3, 2) * torch.tensor([width / 2 - 8, height / 2 - 8])
        sizes = 8 + torch.rand(2, 3, 2) * torch.tensor([width / 4, height / 4])
        targets = [
            {
                "boxes": torch.cat([corner, corner + size], dim=1),
                "labels": torch.ones(3, dtype=torch.int64),
                "masks": torch.randint(2, (3, *image.shape[1:]), dtype=torch.uint8),
                "keypoints": torch.cat(
                    [(corner + size / 2)[:, None].expand(3, 17, 2), torch.ones(3, 17, 1)], dim=2
                ),
            }
            for image, corner, size in zip(images, corners, sizes, strict=True)
        ]
        return (images, targets), {}

    return build


def _clip(num_frames: int, side: int) -> Callable[[int, bool], Inputs]:
    def build(index: int, is_training: bool) -> Inputs:
        return (torch.randn(1 + is_training, 3, num_frames, side, side),), {}

    return build


def _image_pair(index: int, is_training: bool) -> Inputs:
    return (torch.rand(1, 3, 128, 128) * 2 - 1, torch.rand(1, 3, 128, 128) * 2 - 1), {
        "num_flow_updates": 2
    }


def _sides(eval_side: int, train_side: int) -> Callable[[int, bool], Inputs]:
    def build(index: int, is_training: bool) -> Inputs:
        return _images(train_side if is_training else eval_side)(index, is_training)

    return build


_TORCHVISION_INPUTS = {
    "detection": _images_with_targets(64, 80),
    "video": _clip(4, 32),
    "optical_flow": _image_pair,
    "googlenet": _sides(64, 224),
    "inception_v3": _sides(96, 299),
    "maxvit_t": _images(224),
    "mvit_v1_b": _clip(16, 224),
    "mvit_v2_s": _clip(16, 224),
    "s3d": _clip(16, 224),
    "ssd300_vgg16": _images_with_targets(96, 96),
    "ssdlite320_mobilenet_v3_large": _images_with_targets(96, 96),
    "swin3d_b": _clip(4, 64),
    "swin3d_s": _clip(4, 64),
    "swin3d_t": _clip(4, 64),
}

# Thresholds that random weights pass, so that there are detections to compare.
_RCNN = {
    "min_size": 64,
    "max_size": 96,
    "box_score_thresh": 0.0,
    "box_detections_per_img": 8,
    "rpn_pre_nms_top_n_test": 64,
    "rpn_post_nms_top_n_test": 32,
    "rpn_pre_nms_top_n_train": 64,
    "rpn_post_nms_top_n_train": 32,
}
_ONE_STAGE = {
    "min_size": 64,
    "max_size": 96,
    "score_thresh": 0.0,
    "detections_per_img": 8,
    "topk_candidates": 32,
}
_SSD = {"score_thresh": 0.0, "detections_per_img": 8, "topk_candidates": 32}

_TORCHVISION_OPTIONS: dict[str, dict[str, Any]] = {
    "googlenet": {"init_weights": False},
    "inception_v3": {"init_weights": False},
    "quantized_googlenet_float": {"init_weights": False},
    "quantized_inception_v3_float": {"init_weights": False},
    **dict.fromkeys(
        (
            "fasterrcnn_mobilenet_v3_large_320_fpn",
            "fasterrcnn_mobilenet_v3_large_fpn",
            "fasterrcnn_resnet50_fpn",
            "fasterrcnn_resnet50_fpn_v2",
            "keypointrcnn_resnet50_fpn",
            "maskrcnn_resnet50_fpn",
            "maskrcnn_resnet50_fpn_v2",
        ),
        _RCNN,
    ),
    **dict.fromkeys(
        ("fcos_resnet50_fpn", "retinanet_resnet50_fpn", "retinanet_resnet50_fpn_v2"), _ONE_STAGE
    ),
    "ssd300_vgg16": _SSD,
    "ssdlite320_mobilenet_v3_large": _SSD,
}


def _timm() -> Iterator[Specimen]:
    import timm

    for name, side in TIMM.items():
        build = functools.partial(timm.create_model, name, pretrained=False)
        yield Specimen(f"timm/{name}", build, _images(side))


# The smallest model of each file of timm's, more where a file holds several families, and the side
# of its input.
TIMM = {
    "beit_base_patch16_224": 224,
    "beitv2_base_patch16_224": 224,
    "botnet26t_256": 256,
    "caformer_s18": 64,
    "cait_xxs24_224": 224,
    "coat_lite_tiny": 224,
    "coat_tiny": 224,
    "convformer_s18": 64,
    "convit_tiny": 224,
    "convmixer_768_32": 64,
    "convnextv2_atto": 64,
    "cpubone_nano": 64,
    "crossvit_15_dagger_408": 64,
    "cs3darknet_focus_s": 64,
    "cs3se_edgenet_x": 64,
    "csatv2": 64,
    "cspnext_tiny": 64,
    "darknet17": 64,
    "davit_tiny": 64,
    "deepseek_vit_412m": 126,
    "deit3_small_patch16_224": 224,
    "deit_tiny_patch16_224": 224,
    "densenet121": 64,
    "dla34": 64,
    "dla46x_c": 64,
    "dpn48b": 64,
    "eca_nfnet_l0": 64,
    "ecaresnet26t": 64,
    "edgenext_xx_small": 64,
    "efficientformer_l1": 224,
    "efficientformerv2_s0": 224,
    "efficientnet_lite0": 64,
    "efficientvim_m1": 64,
    "efficientvit_b0": 64,
    "efficientvit_m0": 64,
    "ese_vovnet19b_slim_dw": 64,
    "eva02_small_patch14_224": 224,
    "eva02_tiny_patch14_224": 224,
    "fasternet_t0": 64,
    "fastvit_t8": 64,
    "fbnetc_100": 64,
    "focalnet_tiny_srf": 64,
    "gcvit_xxtiny": 224,
    "gemma4_vit_167m": 32,
    "gernet_s": 64,
    "ghostnet_050": 64,
    "gmlp_s16_224": 224,
    "gmlp_ti16_224": 224,
    "halonet26t": 256,
    "halonet_h1": 256,
    "hardcorenas_b": 64,
    "hgnetv2_b0": 64,
    "hiera_tiny_224": 224,
    "hrnet_w18_small": 64,
    "hrnet_w18_small_v2": 64,
    "iformer_t": 64,
    "inception_next_atto": 64,
    "inception_resnet_v2": 96,
    "inception_v3": 96,
    "inception_v4": 96,
    "lambda_resnet26t": 64,
    "lcnet_035": 64,
    "lcnetv2_small": 64,
    "legacy_seresnet18": 64,
    "legacy_xception": 64,
    "levit_128s": 224,
    "levit_conv_128s": 224,
    "lowformer_b0": 64,
    "maxvit_rmlp_pico_rw_256": 256,
    "mixer_s32_224": 224,
    "mixnet_s": 64,
    "mnasnet_small": 64,
    "mobilenet_edgetpu_100": 64,
    "mobilenetv2_035": 64,
    "mobilenetv3_rw": 64,
    "mobilenetv3_small_050": 64,
    "mobilenetv4_conv_small_050": 64,
    "mobilenetv5_base": 32,
    "mobileone_s0": 64,
    "mobilevit_xxs": 64,
    "mobilevitv2_050": 64,
    "mvitv2_tiny": 64,
    "naflexvit_so150m2_patch16_reg1_gap": 32,
    "nasnetalarge": 32,
    "nest_tiny": 224,
    "nextvit_small": 64,
    "nf_resnet26": 64,
    "pit_ti_224": 224,
    "pnasnet5large": 32,
    "poolformer_s12": 64,
    "poolformerv2_s12": 64,
    "pvt_v2_b0": 64,
    "qwen3_vit_88m": 32,
    "rdnet_tiny": 64,
    "regnetx_002": 64,
    "regnety_002": 64,
    "regnetz_005": 64,
    "repghostnet_050": 64,
    "repvgg_a0": 64,
    "repvit_m0_9": 64,
    "repvit_m1": 64,
    "res2net50_26w_4s": 64,
    "res2next50": 64,
    "resmlp_12_224": 224,
    "resnest14d": 64,
    "resnet10t": 64,
    "resnetv2_18": 64,
    "resnetv2_50x1_bit": 64,
    "rexnet_100": 64,
    "sam2_hiera_tiny": 64,
    "samvit_base_patch16_224": 32,
    "sebotnet33ts_256": 256,
    "sehalonet33ts": 256,
    "selecsls42": 64,
    "sequencer2d_s": 64,
    "seresnet18": 64,
    "seresnext26d_32x4d": 64,
    "shvit_s1": 64,
    "skresnet18": 64,
    "starnet_s050": 64,
    "swiftformer_xs": 64,
    "swin_tiny_patch4_window7_224": 224,
    "swinv2_cr_tiny_224": 224,
    "swinv2_tiny_window8_256": 256,
    "test_byobnet": 64,
    "test_coatnet": 160,
    "test_convnext": 64,
    "test_efficientnet": 64,
    "test_mambaout": 64,
    "test_maxvit": 160,
    "test_nfnet": 64,
    "test_resnet": 64,
    "test_vit": 64,
    "test_vit2": 64,
    "test_vit3": 160,
    "test_vit4": 64,
    "test_vit_relpos": 160,
    "tf_efficientnet_b0": 64,
    "tf_mobilenetv3_small_minimal_100": 64,
    "tiny_vit_5m_224": 64,
    "tinynet_e": 64,
    "tnt_s_legacy_patch16_224": 224,
    "tresnet_m": 64,
    "twins_svt_small": 64,
    "vgg11": 32,
    "visformer_tiny": 224,
    "vit_pwee_patch16_reg1_gap_256": 256,
    "vit_relpos_small_patch16_224": 224,
    "vit_small_patch16_224": 224,
    "vit_srelpos_small_patch16_224": 224,
    "vit_tiny_patch16_224": 224,
    "vit_tiny_patch16_dinov3_qkvb": 64,
    "vit_tiny_r_s16_p8_224": 224,
    "vit_wee_patch16_reg1_gap_256": 256,
    "vitamin_small_224": 224,
    "volo_d1_224": 224,
    "xception41p": 64,
    "xcit_nano_12_p16_224": 64,
    "xcit_nano_12_p8_224": 64,
}


@dataclasses.dataclass(frozen=True)
class Tiny:
    """A model of transformers with a small configuration.

    Attributes:
        model: the name of its class.
        build_inputs: as for :class:`Specimen`.
        config: the arguments of its configuration.
        has_input_gradients: as for :class:`Specimen`.
    """

    model: str
    build_inputs: Callable[[int, bool], Inputs]
    config: Mapping[str, Any]
    has_input_gradients: bool = True

    def build_model(self) -> nn.Module:
        """Return the model with random weights."""
        import transformers

        model_class = getattr(transformers, self.model)
        return model_class(model_class.config_class(**self.config))


def _transformers() -> Iterator[Specimen]:
    import transformers

    transformers.logging.set_verbosity_error()
    for name, tiny in TRANSFORMERS.items():
        yield Specimen(f"hf/{name}", tiny.build_model, tiny.build_inputs, tiny.has_input_gradients)


_NUM_TOKENS = 99


def _mask(index: int, batch: int, length: int) -> torch.Tensor:
    """Return an attention mask; the first call attends to everything, a later one pads."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    if index:
        mask[0, -2:] = 0
    return mask


def _tokens(
    length: int = 8, *, has_mask: bool = True, **extra: Any
) -> Callable[[int, bool], Inputs]:
    def build(index: int, is_training: bool) -> Inputs:
        kwargs: dict[str, Any] = {"input_ids": torch.randint(3, _NUM_TOKENS, (2, length))}
        if has_mask:
            kwargs["attention_mask"] = _mask(index, 2, length)
        return (), {**kwargs, **extra}

    return build


def _token_pairs(length: int = 8) -> Callable[[int, bool], Inputs]:
    def build(index: int, is_training: bool) -> Inputs:
        kwargs = _tokens(length)(index, is_training)[1]
        return (), {**kwargs, "decoder_input_ids": torch.randint(3, _NUM_TOKENS, (2, 6))}

    return build


def _tokens_with_boxes(index: int, is_training: bool) -> Inputs:
    kwargs = _tokens()(index, is_training)[1]
    corners = torch.randint(0, 40, (2, 8, 2))
    return (), {**kwargs, "bbox": torch.cat([corners, corners + 5], dim=2)}


def _pixels(side: int = 32, **extra: Any) -> Callable[[int, bool], Inputs]:
    def build(index: int, is_training: bool) -> Inputs:
        return (), {"pixel_values": torch.randn(2, 3, side, side), **extra}

    return build


def _tokens_and_pixels(index: int, is_training: bool) -> Inputs:
    kwargs = _tokens()(index, is_training)[1]
    return (), {**kwargs, "pixel_values": torch.randn(2, 3, 32, 32)}


def _waves(length: int) -> Callable[[int, bool], Inputs]:
    def build(index: int, is_training: bool) -> Inputs:
        return (), {"input_values": torch.randn(2, length)}

    return build


def _spectra(index: int, is_training: bool) -> Inputs:
    return (), {
        "input_features": torch.randn(2, 16, 64),
        "decoder_input_ids": torch.randint(3, _NUM_TOKENS, (2, 6)),
    }


def _patches(index: int, is_training: bool) -> Inputs:
    return (), {"pixel_values": torch.randn(2, 4, 3, 32, 32)}


_BERT = {
    "vocab_size": _NUM_TOKENS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
}
_LLAMA = {**_BERT, "num_key_value_heads": 2}
_HEADED = {**_LLAMA, "head_dim": 8}
_GPT = {"vocab_size": _NUM_TOKENS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
_BART = {
    "vocab_size": _NUM_TOKENS,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 37,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
_T5 = {
    "vocab_size": _NUM_TOKENS,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 37,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
_VIT = {
    "image_size": 32,
    "patch_size": 8,
    "num_channels": 3,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
}
_SWIN = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [1, 2],
    "num_heads": [2, 2],
    "window_size": 2,
}
_WAVE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "conv_dim": (32, 32),
    "conv_stride": (4, 4),
    "conv_kernel": (8, 8),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "mask_time_prob": 0.0,
}
_RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2], "num_channels": 3}
_DETR_CNN = {
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
    "backbone": None,
}
_DETR = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 37,
    "num_queries": 5,
    "num_labels": 7,
}
_CLIP_TEXT = {**_BERT, "bos_token_id": 0, "eos_token_id": 2, "projection_dim": 16}
_CLIP_VISION = {**_VIT, "projection_dim": 16}

# By the name of the architecture; with its default settings, so with a cache where it has one.
TRANSFORMERS: dict[str, Tiny] = {
    "albert": Tiny("AlbertModel", _tokens(), {**_BERT, "embedding_size": 16}),
    "audio_spectrogram": Tiny(
        "ASTModel",
        lambda index, is_training: ((), {"input_values": torch.randn(2, 24, 16)}),
        {
            **_VIT,
            "patch_size": 4,
            "max_length": 24,
            "num_mel_bins": 16,
            "frequency_stride": 4,
            "time_stride": 4,
        },
    ),
    "bart": Tiny("BartModel", _token_pairs(), _BART),
    "beit": Tiny("BeitModel", _pixels(), {**_VIT, "use_relative_position_bias": True}),
    "bert": Tiny("BertModel", _tokens(), _BERT),
    "bert_for_masked_lm": Tiny("BertForMaskedLM", _tokens(), _BERT),
    "big_bird": Tiny("BigBirdModel", _tokens(), {**_BERT, "attention_type": "original_full"}),
    "blenderbot": Tiny("BlenderbotModel", _token_pairs(), _BART),
    "bloom": Tiny(
        "BloomModel",
        _tokens(),
        {
            "vocab_size": _NUM_TOKENS,
            "hidden_size": 32,
            "n_layer": 2,
            "n_head": 4,
            "pad_token_id": 1,
        },
    ),
    "blip_vision": Tiny("BlipVisionModel", _pixels(), _CLIP_VISION),
    "camembert": Tiny("CamembertModel", _tokens(), _BERT),
    "canine": Tiny(
        "CanineModel",
        _tokens(16),
        {**_BERT, "local_transformer_stride": 4, "num_hash_buckets": 64, "downsampling_rate": 4},
    ),
    "clip": Tiny(
        "CLIPModel",
        _tokens_and_pixels,
        {"text_config": _CLIP_TEXT, "vision_config": _CLIP_VISION, "projection_dim": 16},
    ),
    "codegen": Tiny("CodeGenModel", _tokens(), {**_GPT, "rotary_dim": 4, "n_ctx": 64}),
    "cohere": Tiny("CohereModel", _tokens(), _LLAMA),
    "convbert": Tiny("ConvBertModel", _tokens(), {**_BERT, "embedding_size": 32}),
    "convnext": Tiny(
        "ConvNextModel", _pixels(), {"hidden_sizes": [8, 16], "depths": [1, 2], "num_stages": 2}
    ),
    "convnextv2": Tiny(
        "ConvNextV2Model", _pixels(), {"hidden_sizes": [8, 16], "depths": [1, 2], "num_stages": 2}
    ),
    "ctrl": Tiny(
        "CTRLModel",
        _tokens(),
        {
            "vocab_size": _NUM_TOKENS,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "dff": 37,
            "n_positions": 64,
        },
    ),
    "cvt": Tiny(
        "CvtModel",
        _pixels(),
        {"embed_dim": [16, 32, 32], "num_heads": [1, 2, 2], "depth": [1, 2, 3]},
    ),
    "data2vec_text": Tiny("Data2VecTextModel", _tokens(), _BERT),
    "deberta": Tiny(
        "DebertaModel",
        _tokens(),
        {**_BERT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    ),
    "deberta_v2": Tiny(
        "DebertaV2Model",
        _tokens(),
        {**_BERT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    ),
    "deit": Tiny("DeiTModel", _pixels(), _VIT),
    "detr": Tiny("DetrForObjectDetection", _pixels(64), {**_DETR}),
    "dinov2": Tiny("Dinov2Model", _pixels(), {**_VIT, "patch_size": 8}),
    "distilbert": Tiny(
        "DistilBertModel",
        _tokens(),
        {
            "vocab_size": _NUM_TOKENS,
            "dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 37,
            "max_position_embeddings": 64,
        },
    ),
    "dpt": Tiny(
        "DPTForDepthEstimation",
        _pixels(),
        {
            **_VIT,
            "num_hidden_layers": 4,
            "backbone_out_indices": [0, 1, 2, 3],
            "neck_hidden_sizes": [8, 8, 16, 16],
            "fusion_hidden_size": 16,
        },
    ),
    "electra": Tiny("ElectraModel", _tokens(), {**_BERT, "embedding_size": 16}),
    "ernie": Tiny("ErnieModel", _tokens(), _BERT),
    "esm": Tiny("EsmModel", _tokens(), {**_BERT, "position_embedding_type": "rotary"}),
    "falcon": Tiny(
        "FalconModel",
        _tokens(),
        {
            "vocab_size": _NUM_TOKENS,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "pad_token_id": 1,
        },
    ),
    "flaubert": Tiny(
        "FlaubertModel",
        _tokens(),
        {
            "vocab_size": _NUM_TOKENS,
            "emb_dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "max_position_embeddings": 64,
        },
    ),
    "flava_text": Tiny("FlavaTextModel", _tokens(), _BERT),
    "fnet": Tiny("FNetModel", _tokens(has_mask=False), _BERT),
    "focalnet": Tiny(
        "FocalNetModel",
        _pixels(),
        {
            "image_size": 32,
            "patch_size": 2,
            "embed_dim": 16,
            "depths": [1, 1],
            "focal_levels": [2, 2],
            "focal_windows": [3, 3],
            "hidden_sizes": [16, 32],
        },
    ),
    "funnel": Tiny(
        "FunnelModel",
        _tokens(),
        {
            "vocab_size": _NUM_TOKENS,
            "block_sizes": [1, 1],
            "d_model": 32,
            "n_head": 4,
            "d_head": 8,
            "d_inner": 37,
            "num_decoder_layers": 1,
        },
    ),
    "gemma": Tiny("GemmaModel", _tokens(), _HEADED),
    "gemma2": Tiny("Gemma2Model", _tokens(), _HEADED),
    "glpn": Tiny(
        "GLPNModel",
        _pixels(64),
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "hidden_sizes": [16, 32],
            "num_attention_heads": [1, 2],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 16,
        },
    ),
    "gpt2": Tiny("GPT2Model", _tokens(), _GPT),
    "gpt2_lm_head": Tiny("GPT2LMHeadModel", _tokens(), _GPT),
    "gpt_bigcode": Tiny("GPTBigCodeModel", _tokens(), {**_GPT, "pad_token_id": 1}),
    "gpt_neo": Tiny(
        "GPTNeoModel",
        _tokens(),
        {
            "vocab_size": _NUM_TOKENS,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
            "max_position_embeddings": 64,
        },
    ),
    "gpt_neox": Tiny("GPTNeoXModel", _tokens(), _BERT),
    "gptj": Tiny("GPTJModel", _tokens(), {**_GPT, "rotary_dim": 4}),
    "granite": Tiny("GraniteModel", _tokens(), _LLAMA),
    "groupvit_text": Tiny("GroupViTTextModel", _tokens(), _CLIP_TEXT),
    "hubert": Tiny("HubertModel", _waves(400), _WAVE, has_input_gradients=False),
    "ibert": Tiny("IBertModel", _tokens(), _BERT),
    "layoutlm": Tiny(
        "LayoutLMModel", _tokens_with_boxes, {**_BERT, "max_2d_position_embeddings": 64}
    ),
    "led": Tiny(
        "LEDModel",
        _token_pairs(16),
        {
            **_BART,
            "attention_window": 4,
            "max_encoder_position_embeddings": 64,
            "max_decoder_position_embeddings": 64,
        },
    ),
    "levit": Tiny(
        "LevitModel",
        _pixels(64),
        {
            "image_size": 64,
            "hidden_sizes": [16, 32, 32],
            "num_attention_heads": [2, 2, 2],
            "depths": [1, 1, 1],
            "key_dim": [8, 8, 8],
        },
    ),
    "llama": Tiny("LlamaModel", _tokens(), _LLAMA),
    "llama_for_causal_lm": Tiny("LlamaForCausalLM", _tokens(), _LLAMA),
    "longformer": Tiny("LongformerModel", _tokens(16), {**_BERT, "attention_window": [4, 4]}),
    "mamba": Tiny(
        "MambaModel",
        _tokens(has_mask=False),
        {
            "vocab_size": _NUM_TOKENS,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "state_size": 8,
            "time_step_rank": 4,
        },
    ),
    "marian": Tiny("MarianModel", _token_pairs(), _BART),
    "mbart": Tiny("MBartModel", _token_pairs(), _BART),
    "mistral": Tiny("MistralModel", _tokens(), {**_LLAMA, "sliding_window": 4}),
    "mixtral": Tiny(
        "MixtralModel",
        _tokens(),
        {**_LLAMA, "intermediate_size": 32, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "mobilebert": Tiny(
        "MobileBertModel",
        _tokens(),
        {**_BERT, "embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16},
    ),
    "mobilevit": Tiny(
        "MobileViTModel",
        _pixels(64),
        {
            "image_size": 64,
            "hidden_sizes": [16, 16, 16],
            "neck_hidden_sizes": [8, 8, 8, 8, 8, 8, 16],
            "num_attention_heads": 2,
        },
    ),
    "mpnet": Tiny("MPNetModel", _tokens(), _BERT),
    "mpt": Tiny(
        "MptModel",
        _tokens(),
        {"vocab_size": _NUM_TOKENS, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
    ),
    "nystromformer": Tiny(
        "NystromformerModel",
        _tokens(16),
        {**_BERT, "num_landmarks": 16, "segment_means_seq_len": 16, "conv_kernel_size": 5},
    ),
    "olmo": Tiny("OlmoModel", _tokens(), _LLAMA),
    "opt": Tiny(
        "OPTModel",
        _tokens(),
        {
            "vocab_size": _NUM_TOKENS,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "ffn_dim": 37,
            "num_attention_heads": 4,
            "max_position_embeddings": 64,
            "word_embed_proj_dim": 32,
            "pad_token_id": 1,
        },
    ),
    "pegasus": Tiny("PegasusModel", _token_pairs(), _BART),
    "phi": Tiny("PhiModel", _tokens(), _BERT),
    "phi3": Tiny("Phi3Model", _tokens(), _LLAMA),
    "poolformer": Tiny(
        "PoolFormerModel",
        _pixels(64),
        {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]},
    ),
    "pvt": Tiny(
        "PvtModel",
        _pixels(64),
        {
            "image_size": 64,
            "hidden_sizes": [8, 16, 16, 16],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 2, 2, 2],
        },
    ),
    "qwen2": Tiny("Qwen2Model", _tokens(), _LLAMA),
    "qwen3": Tiny("Qwen3Model", _tokens(), _HEADED),
    "regnet": Tiny(
        "RegNetModel",
        _pixels(),
        {
            "embedding_size": 8,
            "hidden_sizes": [8, 16, 16, 16],
            "depths": [1, 1, 1, 1],
            "groups_width": 8,
        },
    ),
    "rembert": Tiny(
        "RemBertModel",
        _tokens(),
        {**_BERT, "input_embedding_size": 16, "output_embedding_size": 16},
    ),
    "resnet": Tiny("ResNetModel", _pixels(), _RESNET),
    "roberta": Tiny("RobertaModel", _tokens(), _BERT),
    "roformer": Tiny("RoFormerModel", _tokens(), {**_BERT, "embedding_size": 32}),
    "rwkv": Tiny(
        "RwkvModel",
        _tokens(has_mask=False),
        {
            "vocab_size": _NUM_TOKENS,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "attention_hidden_size": 32,
        },
    ),
    "segformer": Tiny(
        "SegformerModel",
        _pixels(64),
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "hidden_sizes": [16, 32],
            "num_attention_heads": [1, 2],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "mlp_ratios": [2, 2],
        },
    ),
    "siglip_vision": Tiny("SiglipVisionModel", _pixels(), _VIT),
    "splinter": Tiny("SplinterModel", _tokens(), _BERT),
    "squeezebert": Tiny(
        "SqueezeBertModel",
        _tokens(),
        {**_BERT, "embedding_size": 32, "intermediate_size": 64},
    ),
    "stablelm": Tiny("StableLmModel", _tokens(), _LLAMA),
    "starcoder2": Tiny("Starcoder2Model", _tokens(), _LLAMA),
    "swin": Tiny("SwinModel", _pixels(), _SWIN),
    "swinv2": Tiny("Swinv2Model", _pixels(), {**_SWIN, "window_size": 4}),
    "switch_transformers": Tiny(
        "SwitchTransformersModel",
        _token_pairs(),
        {**_T5, "num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
    ),
    "t5": Tiny("T5Model", _token_pairs(), _T5),
    "timesformer": Tiny("TimesformerModel", _patches, {**_VIT, "num_frames": 4}),
    "unispeech": Tiny("UniSpeechModel", _waves(400), _WAVE, has_input_gradients=False),
    "videomae": Tiny("VideoMAEModel", _patches, {**_VIT, "num_frames": 4, "tubelet_size": 2}),
    "vit": Tiny("ViTModel", _pixels(), _VIT),
    "vit_mae": Tiny("ViTMAEModel", _pixels(), {**_VIT, "decoder_hidden_size": 16}),
    "wav2vec2": Tiny("Wav2Vec2Model", _waves(400), _WAVE, has_input_gradients=False),
    "wavlm": Tiny("WavLMModel", _waves(400), _WAVE, has_input_gradients=False),
    "whisper": Tiny(
        "WhisperModel",
        _spectra,
        {**_BART, "num_mel_bins": 16, "max_source_positions": 32, "max_target_positions": 32},
    ),
    "xglm": Tiny(
        "XGLMModel",
        _tokens(),
        {
            "vocab_size": _NUM_TOKENS,
            "d_model": 32,
            "ffn_dim": 37,
            "num_layers": 2,
            "attention_heads": 4,
            "max_position_embeddings": 64,
        },
    ),
    "xlm": Tiny(
        "XLMModel",
        _tokens(),
        {
            "vocab_size": _NUM_TOKENS,
            "emb_dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "max_position_embeddings": 64,
        },
    ),
    "xlm_roberta": Tiny("XLMRobertaModel", _tokens(), _BERT),
    "xlnet": Tiny(
        "XLNetModel",
        _tokens(),
        {"vocab_size": _NUM_TOKENS, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 37},
    ),
    "yolos": Tiny(
        "YolosModel", _pixels(), {**_VIT, "image_size": [32, 32], "num_detection_tokens": 5}
    ),
}
