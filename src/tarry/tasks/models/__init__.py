"""Models by name, all of them ordinary torch modules: `model_for("resnet18", (3, 32, 32), 10)()`."""

from .mobilenet import MobileNetV2
from .registry import Build, ExampleShape, model_for, models
from .resnet import ResNet
from .resnet1d import ResNet1D
from .slvit import SLViT
from .small import LeNet5, McMahanCNN, mlp
from .textcnn import TextCNN
from .vgg import VGG11

__all__ = [
    "VGG11",
    "Build",
    "ExampleShape",
    "LeNet5",
    "McMahanCNN",
    "MobileNetV2",
    "ResNet",
    "ResNet1D",
    "SLViT",
    "TextCNN",
    "mlp",
    "model_for",
    "models",
]
