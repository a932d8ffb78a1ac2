"""A transport: workers in several processes of one machine, joined by pipes. Every process runs the same server."""

from collections.abc import Callable, Mapping
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import lasg
from lasg.core.messages import Request, Uploads
from lasg.core.transport import Hosting, Local, Plan

ALGORITHMS = ("always+dense", "always+qsgd8", "wk2+dense", "wk2+qsgd8")


class Pipes(Local):
    """Tells every other process what the workers of this one answered; `pipes` lead to the others, by their number."""

    def __init__(self, number: int, pipes: Mapping[int, Connection]) -> None:
        self.number, self.pipes, self.is_first = number, pipes, number == 0

    def begin(self, plan: Plan) -> Hosting:
        """Host some workers, in order; messages travel, and a listener in each process hears those of all workers."""
        processes = len(self.pipes) + 1
        self.owners = np.arange(plan.workers) * processes // plan.workers
        return Hosting(np.flatnonzero(self.owners == self.number), plan.listener(plan.workers))

    def exchange(self, request: Request, own: Uploads) -> Uploads:
        """Tell and hear everybody. Pairs take turns, the lower number first: no two wait for each other."""
        answers = {self.number: own}
        for other, pipe in sorted(self.pipes.items()):
            if self.number < other:
                pipe.send(own)
            answers[other] = pipe.recv()
            if self.number > other:
                pipe.send(own)
        return self._together([answers[number] for number in sorted(answers)])

    def _together(self, answers: list[Uploads]) -> Uploads:
        """Put the answers of all processes, which host the workers in their order, one after the other."""
        left = [np.full(len(one.uploaded), np.nan) if one.left is None else one.left for one in answers]
        broken = [np.zeros(len(one.uploaded), np.bool_) if one.broken is None else one.broken for one in answers]
        reports = [one.reports for one in answers if one.reports is not None]
        estimates = [one.estimates for one in answers if one.estimates is not None]
        return Uploads(
            np.concatenate([one.uploaded for one in answers]),
            sum(one.uploads for one in answers),
            sum(one.bits for one in answers),
            sum(one.gradients for one in answers),
            messages=tuple(message for one in answers for message in one.messages),
            left=None if all(one.left is None for one in answers) else np.concatenate(left),
            estimates=np.concatenate(estimates) if estimates else None,
            broken=None if all(one.broken is None for one in answers) else np.concatenate(broken),
            reports=np.concatenate(reports) if reports else None,
            control=max(one.control for one in answers),
        )

    def from_first(self, make: Callable[[], dict[str, Any]], what: str) -> dict[str, Any]:
        """Return in every process what the first one makes: measurements, for example."""
        if not self.is_first:
            return dict(self.pipes[0].recv())
        made = make()
        for pipe in self.pipes.values():
            pipe.send(made)
        return made


def train(algorithm: str, transport: Local | None = None, rounds: int = 100) -> dict[str, Any]:
    """Train; without a transport in one process. Return who uploaded, what was counted, and the model."""
    training = lasg.training(lasg.task("digits").spec(algorithm, dtype="float64"), transport=transport)
    uploaded = [training.step().uploaded for _ in range(rounds)]
    return {"uploaded": np.array(uploaded), "ledger": training.ledger.row(), "theta": training.theta}


def work(number: int, pipes: Mapping[int, Connection], found: Connection) -> None:
    """Train every algorithm, as one of the processes."""
    found.send({name: train(name, Pipes(number, pipes)) for name in ALGORITHMS})


def train_on(processes: int) -> list[dict[str, dict[str, Any]]]:
    """Start so many processes, with a pipe between every two of them; return what each found."""
    context = get_context("spawn")
    ends: list[dict[int, Connection]] = [{} for _ in range(processes)]
    for low in range(processes):
        for high in range(low + 1, processes):
            ends[low][high], ends[high][low] = context.Pipe()
    results = [context.Pipe(duplex=False) for _ in range(processes)]
    children = [context.Process(target=work, args=(n, ends[n], results[n][1])) for n in range(processes)]
    for child in children:
        child.start()
    found = [receiver.recv() for receiver, _ in results]
    for child in children:
        child.join()
    return found


if __name__ == "__main__":
    in_processes = train_on(3)
    for name in ALGORITHMS:
        alone = train(name)
        same = all(np.array_equal(one[name][key], alone[key]) for one in in_processes for key in alone)
        print(f"{name}: {alone['ledger'][2]} uploads; 3 processes {'equal' if same else 'differ from'} one")
