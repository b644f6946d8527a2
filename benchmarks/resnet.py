"""Residual networks, with torchvision's structure and parameter names."""

from __future__ import annotations

from typing import Any, final

from gradmesh.engine.autograd import ops
from gradmesh.engine.backend import Generator
from gradmesh.engine.nn import (
    AdaptiveAvgPool2d,
    BatchNorm2d,
    Conv2d,
    Linear,
    MaxPool2d,
    Module,
    Sequential,
    init,
)

_EXPANSION = 4


@final
class Bottleneck(Module):
    """Squeeze channels, convolve, widen, and add the input.

    Args:
        channels: Channels of the input.
        planes: Channels of the stage; the result has four times as many.
        stride: Of the middle convolution.
        groups: Of the middle convolution.
        base_width: Width of a group for 64 planes.
        generator: Where initial values come from.
    """

    def __init__(
        self,
        channels: int,
        planes: int,
        stride: int = 1,
        groups: int = 1,
        base_width: int = 64,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        width = planes * base_width // 64 * groups
        out = planes * _EXPANSION
        self.conv1 = Conv2d(channels, width, 1, bias=False, generator=generator)
        self.bn1 = BatchNorm2d(width)
        self.conv2 = Conv2d(
            width, width, 3, stride, 1, groups=groups, bias=False, generator=generator
        )
        self.bn2 = BatchNorm2d(width)
        self.conv3 = Conv2d(width, out, 1, bias=False, generator=generator)
        self.bn3 = BatchNorm2d(out)
        self.downsample: Any = None
        if stride != 1 or channels != out:
            self.downsample = Sequential(
                Conv2d(channels, out, 1, stride, bias=False, generator=generator),
                BatchNorm2d(out),
            )

    def forward(self, x: Any) -> Any:
        """Return [batch, 4 * planes, height / stride, width / stride]."""
        out = ops.relu(self.bn1(self.conv1(x)))
        out = ops.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return ops.relu(out + (x if self.downsample is None else self.downsample(x)))


@final
class ResNet(Module):
    """Classify images by a stack of residual blocks.

    Args:
        layers: Blocks per stage.
        num_classes: Length of the result.
        groups: Of the middle convolutions.
        width_per_group: Width of a group for 64 planes.
        generator: Where initial values come from.
    """

    def __init__(
        self,
        layers: tuple[int, int, int, int],
        num_classes: int = 1000,
        groups: int = 1,
        width_per_group: int = 64,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        self._shape = (groups, width_per_group)
        self.conv1 = Conv2d(3, 64, 7, 2, 3, bias=False, generator=generator)
        self.bn1 = BatchNorm2d(64)
        self.maxpool = MaxPool2d(3, 2, 1)
        self.layer1 = self._stage(64, 64, layers[0], 1, generator)
        self.layer2 = self._stage(256, 128, layers[1], 2, generator)
        self.layer3 = self._stage(512, 256, layers[2], 2, generator)
        self.layer4 = self._stage(1024, 512, layers[3], 2, generator)
        self.avgpool = AdaptiveAvgPool2d(1)
        self.fc = Linear(512 * _EXPANSION, num_classes, generator=generator)
        for module in self.modules():
            if isinstance(module, Conv2d):
                init.kaiming_normal_(
                    module.weight, mode="fan_out", nonlinearity="relu", generator=generator
                )

    def _stage(
        self, channels: int, planes: int, blocks: int, stride: int, generator: Generator | None
    ) -> Sequential:
        groups, width = self._shape
        made = [Bottleneck(channels, planes, stride, groups, width, generator)]
        for _ in range(1, blocks):
            made.append(Bottleneck(planes * _EXPANSION, planes, 1, groups, width, generator))
        return Sequential(*made)

    def forward(self, x: Any) -> Any:
        """Return the logits of x [batch, 3, height, width], [batch, num_classes]."""
        x = self.maxpool(ops.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


def resnet50(num_classes: int = 1000, generator: Generator | None = None) -> ResNet:
    """Return a ResNet-50."""
    return ResNet((3, 4, 6, 3), num_classes, generator=generator)


def resnet101(num_classes: int = 1000, generator: Generator | None = None) -> ResNet:
    """Return a ResNet-101."""
    return ResNet((3, 4, 23, 3), num_classes, generator=generator)


def resnext50_32x4d(num_classes: int = 1000, generator: Generator | None = None) -> ResNet:
    """Return a ResNeXt-50 of 32 groups, 4 wide."""
    return ResNet((3, 4, 6, 3), num_classes, 32, 4, generator)


def resnext101_32x8d(num_classes: int = 1000, generator: Generator | None = None) -> ResNet:
    """Return a ResNeXt-101 of 32 groups, 8 wide."""
    return ResNet((3, 4, 23, 3), num_classes, 32, 8, generator)
