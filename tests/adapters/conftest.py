"""Ranks that have imported what takes long: the server that starts them imports it once."""

import multiprocessing
from multiprocessing import forkserver

import pytest


@pytest.fixture(scope="session", autouse=True)
def preloaded() -> None:
    modules = ["lasg.loops.lazy_loop", "transformers.trainer", "transformers.models.gpt2.modeling_gpt2", "accelerate"]
    multiprocessing.get_context("forkserver").set_forkserver_preload([*modules, "lightning", "pytest"])
    forkserver.ensure_running()
