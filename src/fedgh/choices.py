"""Allowed values, as types, of settings, command options and Python arguments."""

from typing import Literal

EngineName = Literal["serial", "workers", "ray"]
Protected = Literal["nothing", "sample", "client"]
ExportFormat = Literal["safetensors", "onnx", "torch-export"]
TableFormat = Literal["latex", "markdown", "csv"]
ReportFormat = Literal["svg", "png", "pdf", "latex", "markdown", "csv"]
BudgetName = Literal["smoke", "quick", "paper"]
TextFormat = Literal["text", "json"]
Kind = Literal["methods", "models", "datasets", "experiments", "studies"]
"""The argument of `fedgh list`."""
