"""Allowed values, as types, of settings, command options and Python arguments."""

from typing import Literal

EngineName = Literal["serial", "workers", "ray"]
Protected = Literal["nothing", "sample", "client"]
ExportFormat = Literal["safetensors", "onnx", "torch-export"]
FigureFormat = Literal["svg", "png", "pdf"]
BudgetName = Literal["smoke", "quick", "paper"]
Kind = Literal["methods", "models", "datasets", "experiments", "studies"]
"""The argument of `fedgh list`."""
