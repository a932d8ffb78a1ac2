"""Hosts on one machine with slow links: network namespaces, TUN devices, and a process in between that is the network.

    python benchmarks/namespaces.py --rate 2 --round-trip 100 --loss 1     # what such a link does, measured; as root

with hosts([Link(rate=10e6, round_trip=0.05)] * 4) as network:
    network.command(0)             # what goes before a command that shall run on host 0
    network.change(2, LOST)        # host 2 is cut off, until its link is changed again

Every host has a TUN device. A process between them carries the packets: it delays each by half the round trip, lets no
host send or receive faster than its rate, and loses some.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import heapq
import itertools
import multiprocessing
import os
import random
import select
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

SUBNET = "10.77.0"
DEVICE = "lasgtun"
MTU = 1500
QUEUE_SECONDS = 0.5
"""What a link's buffer holds; more is dropped, as a router does."""
TUNSETIFF, IFF_TUN, IFF_NO_PI, CLONE_NEWNET = 0x400454CA, 0x0001, 0x1000, 0x40000000
_numbers = itertools.count()


@dataclass(frozen=True)
class Link:
    """How a host is connected."""

    rate: float
    """Bits per second, each way."""
    round_trip: float = 0.0
    """Seconds, to a host with the same link and back."""
    loss: float = 0.0
    """The chance that a packet is lost on its way; between two hosts the larger of theirs counts."""


LOST = Link(rate=1e6, loss=1.0)
"""A link that carries nothing."""


class Network:
    """Hosts, and the links that they have now."""

    def __init__(self, names: list[str], settings: Any) -> None:
        self.names, self._settings = names, settings

    def address(self, host: int) -> str:
        """Return a host's address."""
        return f"{SUBNET}.{host + 1}"

    def command(self, host: int) -> tuple[str, ...]:
        """Return the words that go before a command that runs on a host."""
        return ("ip", "netns", "exec", self.names[host])

    def change(self, host: int, link: Link) -> None:
        """Give a host another link, from now on."""
        with self._settings.get_lock():
            self._settings[3 * host : 3 * host + 3] = astuple(link)


@contextmanager
def hosts(links: Sequence[Link], mtu: int = MTU) -> Iterator[Network]:
    """Make namespaces, and the network between them; remove all of it."""
    prefix = f"lasg{os.getpid()}-{next(_numbers)}"
    names = [f"{prefix}-{host}" for host in range(len(links))]
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    settings = context.Array("d", [number for link in links for number in astuple(link)])
    carrier = context.Process(target=carry, args=(names, settings, ready), daemon=True)
    try:
        for name in names:
            ip("netns", "add", name)
        carrier.start()
        if not ready.wait(10):
            raise RuntimeError("the process between the hosts could not make its TUN devices: is there /dev/net/tun?")
        network = Network(names, settings)
        for host, name in enumerate(names):
            inside = ("-n", name)
            ip(*inside, "addr", "add", f"{network.address(host)}/24", "dev", DEVICE)
            ip(*inside, "link", "set", DEVICE, "mtu", str(mtu), "up")
            ip(*inside, "link", "set", "lo", "up")
        yield network
    finally:
        if carrier.pid is not None:
            carrier.kill()
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def require_root() -> None:
    """Stop where namespaces cannot be made."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        sys.exit("network namespaces need root and the command ip (iproute2)")


def ip(*words: str) -> None:
    """Run the command ip."""
    subprocess.run(["ip", *words], check=True)


def carried(device: str = DEVICE) -> tuple[int, int]:
    """Return the bytes that an interface of this process's namespace received and sent, as the kernel counts them."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == device:
            found = numbers.split()
            return int(found[0]), int(found[8])
    return 0, 0


# -- the network -----------------------------------------------------------------------------------------------------


def carry(names: list[str], settings: Any, ready: Any) -> None:
    """Carry packets between the hosts, for ever."""
    os.setpriority(os.PRIO_PROCESS, 0, -20)  # the hosts' own work must not delay the network
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    handles = []
    for name in names:
        enter_namespace(name)
        handles.append(open_tun())
    ready.set()
    host_of = {handle: host for host, handle in enumerate(handles)}
    sent, received = [0.0] * len(handles), [0.0] * len(handles)
    waiting: list[tuple[float, int, int, bytes]] = []
    numbers, chance = itertools.count(), random.Random(0)
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for handle in select.select(handles, [], [], pause)[0]:
            source = host_of[handle]
            for packet in read_packets(handle):
                target = packet[19] - 1
                if packet[0] >> 4 != 4 or not 0 <= target < len(handles):
                    continue
                arrival = plan(len(packet), source, target, settings, sent, received, chance.random())
                if arrival is not None:
                    heapq.heappush(waiting, (arrival, next(numbers), target, packet))
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, target, packet = heapq.heappop(waiting)
            try:
                os.write(handles[target], packet)
            except (BlockingIOError, OSError):
                continue


def plan(
    size: int, source: int, target: int, settings: Any, sent: list[float], received: list[float], luck: float
) -> float | None:
    """Return when a packet arrives, None where it is lost; `sent` and `received` say until when the links are busy."""
    (rate, up, lost), (rate_down, down, lost_down) = (settings[3 * h : 3 * h + 3] for h in (source, target))
    now, way = time.monotonic(), (up + down) / 4
    if sent[source] - now > QUEUE_SECONDS:
        return None
    sent[source] = max(sent[source], now) + 8 * size / rate
    # At the other end it may queue behind what others send there.
    needs = 8 * size / rate_down
    arrival: float = max(received[target], sent[source] + way - needs) + needs
    if arrival - now - way > 2 * QUEUE_SECONDS or luck < max(lost, lost_down):
        return None
    received[target] = arrival
    return arrival


def read_packets(handle: int) -> Iterator[bytes]:
    """Give the packets that a host has sent."""
    while True:
        try:
            yield os.read(handle, 65536)
        except BlockingIOError:
            return


def enter_namespace(name: str) -> None:
    """Move this process into a network namespace."""
    with Path(f"/run/netns/{name}").open() as handle:
        if ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {name}")


def open_tun() -> int:
    """Create the TUN device in the namespace that this process is in; return its handle."""
    handle = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(handle, TUNSETIFF, struct.pack("16sH", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    return handle


# -- measured --------------------------------------------------------------------------------------------------------


def answer(name: str, address: str, ready: Any) -> None:
    """On a host: echo datagrams, and count the bytes of one TCP connection."""
    enter_namespace(name)
    echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    echo.bind((address, 9000))
    server = socket.create_server((address, 9001))
    ready.set()
    accepted: socket.socket | None = None
    while True:
        for one in select.select([echo, server if accepted is None else accepted], [], [])[0]:
            if one is echo:
                data, sender = echo.recvfrom(2048)
                echo.sendto(data, sender)
            elif one is server:
                accepted = server.accept()[0]
            elif not one.recv(1 << 20):
                one.sendall(b"!")  # all has arrived
                return


def measure(network: Network, seconds: float) -> dict[str, float]:
    """Return what the link from host 0 to host 1 does: round trip, loss there and back, and a TCP connection's rate."""
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    other = context.Process(target=answer, args=(network.names[1], network.address(1), ready), daemon=True)
    other.start()
    ready.wait(10)
    enter_namespace(network.names[0])
    asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    asking.settimeout(1.0)
    trips, asked = [], 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began, asked = time.monotonic(), asked + 1
        asking.sendto(b"?", (network.address(1), 9000))
        try:
            asking.recv(16)
            trips.append(time.monotonic() - began)
        except TimeoutError:
            pass
    with socket.create_connection((network.address(1), 9001)) as stream:
        began, size = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            size += stream.send(bytes(16384))
        stream.shutdown(socket.SHUT_WR)
        stream.recv(1)
        rate = 8 * size / (time.monotonic() - began)
    other.kill()
    trips.sort()
    return {
        "round trip, ms": 1e3 * trips[len(trips) // 2],
        "lost, there or back, %": 100 * (1 - len(trips) / asked),
        "TCP, Mbit/s": rate / 1e6,
    }


def main() -> None:
    """Print what a link does beside what it should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=50.0, help="Mbit/s each way")
    parser.add_argument("--round-trip", type=float, default=20.0, help="ms")
    parser.add_argument("--loss", type=float, default=0.0, help="per cent of the packets")
    parser.add_argument("--mtu", type=int, default=MTU)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    given = parser.parse_args()
    require_root()
    link = Link(given.rate * 1e6, given.round_trip / 1e3, given.loss / 100)
    with hosts([link, link], given.mtu) as network:
        for what, value in measure(network, given.seconds).items():
            print(f"{what}: {value:.4g}")


if __name__ == "__main__":
    main()
