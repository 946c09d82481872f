"""Every test runs on one thread and writes to a temporary cache and results folder, never to the user's."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def folders(shared_cache, tmp_path, monkeypatch):
    """The cache is shared by the tests of a session (images are rendered once); results belong to one test, as does the
    record with its searches: what is committed tunes no run of a test."""
    monkeypatch.setenv("DMLREPRO_CACHE", str(shared_cache))
    monkeypatch.setenv("DMLREPRO_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("DMLREPRO_RECORD", str(tmp_path / "record"))
