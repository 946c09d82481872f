"""The benchmark that a test file mirrors, or that a test names, as a module."""

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def benchmark(request):
    name = getattr(request, "param", request.path.stem.removeprefix("test_benchmark_"))
    spec = importlib.util.spec_from_file_location(
        f"benchmark_{name}", Path(__file__).parents[2] / f"benchmarks/{name}.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
