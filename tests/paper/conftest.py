"""One thread a process: the tests run in parallel, and their tensors are small."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)
