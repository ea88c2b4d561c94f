"""Networks of torchvision, timm and segmentation-models-pytorch: one of each
family that has batch norm, its smallest. Weights are random."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


@dataclasses.dataclass(frozen=True)
class Network:
    """How a network is made.

    Attributes:
        make: the network, with two classes.
        shape: of an input.
    """
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]


def _torchvision(name: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        from torchvision import models
        return models.get_model(name, weights=None, num_classes=2, **options)
    return make


def _timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import timm
        return timm.create_model(name, pretrained=False, num_classes=2, **options)
    return make


def _smp(architecture: str, encoder: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import segmentation_models_pytorch
        return segmentation_models_pytorch.create_model(
            architecture, encoder, encoder_weights=None, classes=2)
    return make


_IMAGE = (3, 64, 64)
_CLIP = (3, 4, 32, 32)

# Name: input, options.
_TORCHVISION: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "resnet18": (_IMAGE, {}),
    "resnext50_32x4d": (_IMAGE, {}),
    "densenet121": (_IMAGE, {}),
    "googlenet": (_IMAGE, {"aux_logits": False, "init_weights": False}),
    "inception_v3": ((3, 96, 96), {"aux_logits": False, "init_weights": False}),
    "mobilenet_v2": (_IMAGE, {}),
    "mobilenet_v3_small": (_IMAGE, {}),
    "mnasnet0_5": (_IMAGE, {}),
    "shufflenet_v2_x0_5": (_IMAGE, {}),
    "efficientnet_b0": (_IMAGE, {}),
    "regnet_x_400mf": (_IMAGE, {}),
    "regnet_y_400mf": (_IMAGE, {}),
    "fcn_resnet50": (_IMAGE, {"weights_backbone": None}),
    "deeplabv3_mobilenet_v3_large": (_IMAGE, {"weights_backbone": None}),
    "lraspp_mobilenet_v3_large": (_IMAGE, {"weights_backbone": None}),
    "r3d_18": (_CLIP, {}),
    "mc3_18": (_CLIP, {}),
    "r2plus1d_18": (_CLIP, {}),
}

_TIMM: dict[str, tuple[int, ...]] = {
    "resnet10t": _IMAGE, "resnetv2_18": _IMAGE, "ecaresnet26t": _IMAGE,
    "legacy_seresnet18": _IMAGE, "skresnet18": _IMAGE, "resnest14d": _IMAGE,
    "res2net50_14w_8s": _IMAGE, "dla46_c": _IMAGE, "dpn48b": _IMAGE,
    "selecsls42": _IMAGE, "hrnet_w18_small": _IMAGE, "hardcorenas_a": _IMAGE,
    "mobilenetv2_035": _IMAGE, "mobilenetv3_small_050": _IMAGE,
    "mobilenetv4_conv_small_035": _IMAGE, "mobilenet_edgetpu_v2_xs": _IMAGE,
    "efficientnet_lite0": _IMAGE, "tf_efficientnetv2_b0": _IMAGE,
    "mixnet_s": _IMAGE, "fbnetc_100": _IMAGE, "fbnetv3_b": _IMAGE,
    "spnasnet_100": _IMAGE, "semnasnet_075": _IMAGE, "tinynet_e": _IMAGE,
    "lcnet_035": _IMAGE, "ghostnet_050": _IMAGE, "ghostnetv2_100": _IMAGE,
    "ghostnetv3_050": _IMAGE, "repghostnet_050": _IMAGE, "repvgg_a0": _IMAGE,
    "mobileone_s0": _IMAGE, "fastvit_t8": _IMAGE, "rexnet_100": _IMAGE,
    "regnetx_002": _IMAGE, "regnety_002": _IMAGE, "regnetz_005": _IMAGE,
    "darknet17": _IMAGE, "cs3darknet_s": _IMAGE, "cspnext_tiny": _IMAGE,
    "ese_vovnet19b_slim_dw": _IMAGE, "gernet_s": _IMAGE,
    "efficientformer_l1": (3, 224, 224), "efficientformerv2_s0": (3, 224, 224),
    "efficientvit_b0": _IMAGE, "efficientvit_m0": (3, 224, 224),
    "mobilevit_xxs": _IMAGE, "mobilevitv2_050": _IMAGE, "starnet_s050": _IMAGE,
    "repvit_m0_9": _IMAGE, "hgnetv2_b0": _IMAGE, "swiftformer_xs": _IMAGE,
    "shvit_s1": (3, 128, 128), "tiny_vit_5m_224": (3, 224, 224),
    "visformer_tiny": (3, 224, 224), "bat_resnext26ts": (3, 256, 256),
    "eca_botnext26ts_256": (3, 256, 256), "halonet26t": (3, 256, 256),
    "lambda_resnet26t": (3, 128, 128), "gcresnext26ts": _IMAGE,
    "levit_conv_128s": (3, 224, 224), "fasternet_t0": _IMAGE,
    "xcit_nano_12_p16_224": (3, 224, 224), "coatnet_pico_rw_224": (3, 224, 224),
    "lcnetv2_small": _IMAGE, "lowformer_b0": _IMAGE, "convmixer_768_32": _IMAGE,
    "xception41": _IMAGE, "legacy_xception": _IMAGE, "densenetblur121d": _IMAGE,
}

# Architecture: encoder.
_SMP = {
    "unet": "resnet18", "unetplusplus": "mobilenet_v2", "manet": "resnet18",
    "linknet": "vgg11_bn", "fpn": "efficientnet-b0", "pspnet": "densenet121",
    "pan": "resnet18", "deeplabv3": "resnet18", "deeplabv3plus": "mobilenet_v2",
    "upernet": "resnet18", "segformer": "resnet18",
}

NETWORKS: dict[str, Network] = {
    **{f"torchvision.{name}": Network(_torchvision(name, **options), shape)
       for name, (shape, options) in _TORCHVISION.items()},
    **{f"timm.{name}": Network(_timm(name), shape)
       for name, shape in _TIMM.items()},
    # PAN pools an image of 128 pixels to one.
    **{f"smp.{name}": Network(_smp(name, encoder),
                              (3, 128, 128) if name == "pan" else _IMAGE)
       for name, encoder in _SMP.items()},
}


# An activation whose derivative jumps, by the name of its class, and one like it
# without a jump. Samples that are at rounding distance from the jump would make
# float32 as wrong as a fault. So would maxima of values that are nearly equal,
# which become means.
_SMOOTH: dict[str, Callable[[], nn.Module]] = {
    "ReLU": nn.ELU, "ReLU6": nn.ELU, "LeakyReLU": nn.ELU, "PReLU": nn.ELU,
    "Hardswish": nn.SiLU, "HardSwish": nn.SiLU, "HardSwishMe": nn.SiLU,
    "Hardsigmoid": nn.Sigmoid, "HardSigmoid": nn.Sigmoid,
    "HardSigmoidMe": nn.Sigmoid,
}


def comparable(model: nn.Module) -> nn.Module:
    """Without jumps, and without dropout of samples and of layers: one process
    would draw other numbers than several."""
    for module in list(model.modules()):
        kind = type(module).__name__
        # Some networks call the function with another rate.
        names = ("p", "drop_prob", "drop_rate") if (
            "Drop" in kind or kind == "StochasticDepth") else ("drop_rate",)
        for name in names:
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
        for name, child in module.named_children():
            if name == "kernel_func":
                # Of an attention that divides by the sum: positive.
                setattr(module, name, nn.Softplus())
            elif type(child).__name__ in _SMOOTH:
                setattr(module, name, _SMOOTH[type(child).__name__]())
            elif type(child) in (nn.MaxPool2d, nn.MaxPool3d):
                kind = (nn.AvgPool2d if type(child) is nn.MaxPool2d
                        else nn.AvgPool3d)
                setattr(module, name, kind(child.kernel_size, child.stride,
                                           child.padding, child.ceil_mode))
    return model


def replace_functions() -> None:
    """The same for networks that call the function, for this process."""
    def elu(x: torch.Tensor, inplace: bool = False) -> torch.Tensor:
        return nn.functional.elu(x, inplace=inplace)

    def mean(x: torch.Tensor, kernel_size: Any, stride: Any = None,
             padding: Any = 0, **options: Any) -> torch.Tensor:
        return nn.functional.avg_pool2d(x, kernel_size, stride, padding,
                                        options.get("ceil_mode", False))
    nn.functional.relu = nn.functional.relu6 = elu
    torch.relu = nn.functional.elu
    nn.functional.max_pool2d = mean


def outputs_of(out: Any) -> torch.Tensor:
    """[n, 2] of what a network returns: a classifier's, a segmentation's."""
    if isinstance(out, dict):
        out = out["out"]
    return out if out.dim() == 2 else out.flatten(2).mean(2)
