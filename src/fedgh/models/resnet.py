"""ResNet-18 (He et al. 2016) for small images: a 3x3 stem without pooling."""

from fractions import Fraction

from torch import Tensor, nn

from fedgh.errors import ConfigError
from fedgh.models.width import FULL, units


def _conv_bn(inputs: int, outputs: int, size: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            _conv_bn(inputs, outputs, 3, stride), nn.ReLU(), _conv_bn(outputs, outputs, 3, 1)
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else _conv_bn(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(residual(x) + shortcut(x))."""
        out: Tensor = (self.residual(x) + self.shortcut(x)).relu()
        return out


def resnet18(shape: tuple[int, ...], rep_dim: int, *, width: Fraction = FULL) -> nn.Sequential:
    """Return ResNet-18: stem, four stages of two blocks, mean over the image, a dense layer."""
    if len(shape) != 3:
        raise ConfigError(f"resnet18 takes images, but inputs have shape {shape}")
    stages = [units(width, channels) for channels in (64, 128, 256, 512)]
    inputs = stages[0]
    layers: list[nn.Module] = [_conv_bn(shape[0], inputs, 3, 1), nn.ReLU()]
    for stage, outputs in enumerate(stages):
        layers.append(BasicBlock(inputs, outputs, stride=1 if stage == 0 else 2))
        layers.append(BasicBlock(outputs, outputs, stride=1))
        inputs = outputs
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, rep_dim), nn.ReLU()
    )
