"""Flower's in-process machinery: its state and grid, with a ClientApp that answers as soon as it is asked."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any, cast
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import HEARTBEAT_INTERVAL_INF, NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
from flwr.proto.task_pb2 import Task
from flwr.server.superlink.linkstate import InMemoryLinkState, LinkStateFactory
from flwr.server.superlink.linkstate.in_memory_linkstate import RunRecord
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import InMemoryGrid

RUN, TASK, SUPERLINK = 12345, 1, 1


class Inline(InMemoryGrid):
    """A grid whose nodes run the ClientApp inside `push_messages`."""

    def __init__(self, app: ClientApp, nodes: int, config: dict[str, Any]) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = TASK, RUN, SUPERLINK
        factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory())
        state = cast(InMemoryLinkState, factory.state())
        run = Run.create_empty(run_id=RUN)
        run.primary_task_id, run.federation_id = TASK, NOOP_FEDERATION_ID
        state.run_ids[RUN] = RunRecord(run=run)
        state.task_store[TASK] = Task(task_id=TASK, run_id=RUN)
        super().__init__(state_factory=factory)
        self.set_run(run)
        self.app = app
        self.contexts: dict[int, Context] = {}
        for number in range(nodes):
            node = state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, secrets.token_bytes(32), HEARTBEAT_INTERVAL_INF)
            state.acknowledge_node_heartbeat(node_id=node, heartbeat_interval=HEARTBEAT_INTERVAL_INF)
            self.contexts[node] = Context(RUN, node, {"partition-id": number}, RecordDict(), config)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = list(super().push_messages(messages))
        for node, context in self.contexts.items():
            for message in self.state.get_message_ins(node_id=node, limit=None):
                self.state.store_message_res(self.answer(message, context))
        return names

    def answer(self, message: Message, context: Context) -> Message:
        try:
            reply = self.app(message, context)
        except Exception as error:
            reply = Message(Error(code=0, reason=repr(error)), reply_to=message)
        reply.metadata.__dict__["_message_id"] = str(uuid4())
        return reply
