"""What lasg writes to torchrun's store lies below a name with a word of the run."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from lasg.transports import links


def test_runs_with_other_secrets_do_not_meet_in_one_store(monkeypatch: pytest.MonkeyPatch) -> None:
    store: Any = TCPStore("127.0.0.1", 0, 1, is_master=True)
    names = {}
    for word in ("one", "another"):
        monkeypatch.setenv(links.RUN_WORD, word)
        found: list[str] = []
        client: Any = TCPStore("127.0.0.1", store.port)
        other = threading.Thread(
            target=lambda found=found, client=client: found.append(links._attempt(client, 1, 2, 20.0))
        )
        other.start()
        names[word] = links._attempt(store, 0, 2, 20.0)
        other.join()
        assert found == [names[word]]
    assert names["one"].split("/")[1] != names["another"].split("/")[1]
    assert not any(word in key for key in store.list_keys() for word in names)


def test_without_a_secret_the_name_is_of_torchruns_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(links.RUN_WORD, raising=False)
    names = set()
    for run in ("mine", "yours"):
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", run)
        names.add(links._place())
    assert len(names) == 2
