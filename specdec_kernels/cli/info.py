"""`specdec-kernels info`: versions, devices, backends and build."""

from __future__ import annotations

import argparse
import json
import platform
from importlib import metadata

import torch

import specdec_kernels as specdec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `specdec-kernels info`."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the facts; 0."""
    versions = {"python": platform.python_version()}
    for package in ("specdec-kernels", "torch", "triton", "transformers"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    devices = [f"cpu ({platform.machine()}, {torch.get_num_threads()} threads)"]
    devices += [f"cuda:{index} ({torch.cuda.get_device_name(index)})" for index in range(torch.cuda.device_count())]
    facts = {
        "versions": versions,
        "devices": devices,
        "backends": specdec.available_backends(),
        "build": specdec.build_info(),
    }
    if args.json:
        print(json.dumps(facts, default=str))
        return 0
    for name, value in facts.items():
        if isinstance(value, dict):
            print(f"{name}:")
            for key, entry in value.items():
                print(f"  {key}: {'not installed' if entry is None else entry}")
        else:
            print(f"{name}: {', '.join(map(str, value))}")
    return 0
