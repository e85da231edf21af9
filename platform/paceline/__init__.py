"""Paceline: a Ray cluster of GPUs that keeps its pace."""

from importlib.metadata import version

__version__ = version("paceline")
