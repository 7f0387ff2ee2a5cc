"""Words to choose from, as types: of settings, options of commands and arguments in Python."""

from typing import Literal

EngineName = Literal["serial", "workers", "ray"]
Protected = Literal["nothing", "sample", "client"]
ExportFormat = Literal["safetensors", "onnx", "torch-export"]
FigureFormat = Literal["svg", "png", "pdf"]
BudgetName = Literal["smoke", "quick", "paper"]
Kind = Literal["methods", "models", "datasets", "experiments", "studies"]
"""What `fedgh list` lists."""
