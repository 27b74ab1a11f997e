#!/usr/bin/python3
"""Two programs that check every byte, each on the verbs of its own machine.

    bytes.py --device NAME --own ADDRESS --far ADDRESS -p PORT [-n BATCHES] [--seed N] [HOST]

Without HOST it listens for the other one, lends it memory, and sends back each SEND.  With HOST it asks one that listens: batches of WRITEs,
READs, atomics and SENDs of random lengths at random places.  It knows what the memory of the other one has to be, and
compares what it reads and what comes back."""
import argparse
import json
import random
import socket
import struct
import sys
import time

from adapter import LIMIT, Library, Wrong, want

BATCH, ROOM = 8, 1 << 16  # requests on their way, and bytes for each of them
LENGTHS = (0, 1, 3, 8, 255, 1023, 1024, 1025, 4095, 4096, 4097, 10000, ROOM - 64)
MEMORY = BATCH * ROOM  # what the other one may write to: the lower half of the region


class Far:
    """What Library.connect() asks of the other end."""

    def __init__(self, own):
        self.own, self.v6 = own, ":" in own


class Talk:
    def __init__(self, lib, far, connection):
        """Both make a queue pair, and connect it to the other's."""
        self.lib, self.io = lib, connection.makefile("rw")
        self.psn = random.randrange(1 << 24)
        self.unconnected = lib.create()
        self.say(qpn=self.unconnected.qp_num, psn=self.psn, addr=lib.mr.buf, rkey=lib.mr.rkey)
        self.other = self.hear()
        self.qp = lib.link(self.unconnected, Far(far), self.other["qpn"], self.other["psn"], self.psn)
        self.say(ready=1)
        self.hear()

    def say(self, **words):
        print(json.dumps(words), file=self.io, flush=True)

    def hear(self):
        line = self.io.readline()
        if not line:
            raise Wrong("the other one is gone")
        return json.loads(line)


def completions(lib, n):
    got, end = [], time.monotonic() + 3 * LIMIT
    while len(got) < n:
        new = lib.poll()
        for w in new:
            want(f"status of completion {w.wr_id:#x}", w.status, 0)
        got += new
        if not new and time.monotonic() > end:
            raise Wrong(f"{len(got)} of {n} completions came: {[hex(w.wr_id) for w in got]}")
    return got


def serve(t, a):
    """Sends back what comes, until the other one has asked for all."""
    lib, slot = t.lib, lambda i: MEMORY + i % BATCH * ROOM
    for i in range(BATCH):
        lib.recv(t, i, slot(i), ROOM)
    t.say(ready=1)
    n = t.hear()["echoes"]
    while n is not None:
        back = []
        for w in completions(lib, n):
            lib.post(t, 0x100 + w.wr_id, lib.e.IBV_WR_SEND, slot(w.wr_id), w.byte_len)
            back.append(w.wr_id)
        completions(lib, n)
        for i in back:
            lib.recv(t, i, slot(i), ROOM)
        t.say(ready=1)
        n = t.hear()["echoes"]


def ask(t, a):
    lib, e, rng = t.lib, t.lib.e, random.Random(a.seed)
    far = bytearray(MEMORY)
    base, rkey = t.other["addr"], t.other["rkey"]
    counts, total = {}, 0
    # The other one's memory begins with what nobody knows.
    lib.put(0, bytes(MEMORY))
    for i in range(BATCH):
        lib.post(t, i, e.IBV_WR_RDMA_WRITE, i * ROOM, ROOM, (rkey, base + i * ROOM))
    completions(lib, BATCH)
    t.hear()
    for turn in range(a.n):
        todo, echoes, expected = [], 0, 0
        kinds = [rng.choice(("write", "read", "add", "swap", "send")) for _ in range(BATCH)]
        for i, kind in enumerate(kinds):
            at, n = i * ROOM + rng.randrange(64), rng.choice(LENGTHS)
            counts[kind], total = counts.get(kind, 0) + 1, total + n
            if kind == "send":
                # What comes back goes to the upper half.
                lib.recv(t, 0x200 + i, MEMORY + i * ROOM, ROOM)
                echoes, expected = echoes + 1, expected + 2
            else:
                expected += 1
            todo.append((kind, i, at, n))
        t.say(echoes=echoes)
        for kind, i, at, n in todo:
            if kind in ("write", "send"):
                lib.put(at, rng.randbytes(n))
            if kind == "write":
                far[at:at + n] = lib.bytes(at, n)
                lib.post(t, i, e.IBV_WR_RDMA_WRITE, at, n, (rkey, base + at))
            elif kind == "read":
                lib.put(at, b"\xee" * min(n, 16))
                lib.post(t, i, e.IBV_WR_RDMA_READ, at, n, (rkey, base + at))
            elif kind == "send":
                lib.post(t, i, e.IBV_WR_SEND, at, n)
            else:
                at &= ~7
                lib.put(at, bytes(8))
                op = e.IBV_WR_ATOMIC_FETCH_AND_ADD if kind == "add" else e.IBV_WR_ATOMIC_CMP_AND_SWP
                old = struct.unpack_from("=Q", far, at)[0]
                one = 12345678901 if kind == "add" else old if n & 1 else old ^ 1
                lib.post(t, i, op, at, 8, atomic=(rkey, base + at, one, 77))
        got = completions(lib, expected)
        echoed = [w for w in got if w.wr_id >= 0x200]
        for (kind, i, at, n), w in zip([x for x in todo if x[0] == "send"], echoed):
            want(f"turn {turn}: length of what came back", (w.wr_id, w.byte_len), (0x200 + i, n))
            want(f"turn {turn}: what came back", lib.bytes(MEMORY + i * ROOM, n) == lib.bytes(at, n), True)
        for kind, i, at, n in todo:
            if kind == "read":
                want(f"turn {turn}: READ of {n} bytes at {at:#x}", lib.bytes(at, n) == far[at:at + n], True)
            elif kind in ("add", "swap"):
                at &= ~7
                old, was = struct.unpack_from("=Q", far, at)[0], struct.unpack("=Q", lib.bytes(at, 8))[0]
                want(f"turn {turn}: what the {kind} at {at:#x} returns", was, old)
                new = old + 12345678901 & (1 << 64) - 1 if kind == "add" else 77 if n & 1 else old
                struct.pack_into("=Q", far, at, new)
        t.hear()
    for i in range(BATCH):
        lib.post(t, i, e.IBV_WR_RDMA_READ, i * ROOM, ROOM, (rkey, base + i * ROOM))
    completions(lib, BATCH)
    want("all of the other one's memory", lib.bytes(0, MEMORY) == far, True)
    t.say(echoes=None)
    print(f"= {sum(counts.values())} requests, {total >> 10} KiB: " + ", ".join(f"{n} {k}" for k, n in sorted(counts.items())))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--device", "-d")
    p.add_argument("--gid", "-g", help="not looked at: it is found by --own")
    p.add_argument("--own")
    p.add_argument("--far")
    p.add_argument("-p", dest="port", type=int)
    p.add_argument("-n", type=int, default=20)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("-W", dest="counter", help="a file below ports/1/, which it prints at its end, as perftest does")
    p.add_argument("host", nargs="?")
    a = p.parse_args()
    try:
        lib = Library(a.device, a.own, size=2 * MEMORY)
        if a.host:
            connection = socket.create_connection((a.host, a.port), timeout=3 * LIMIT)
        else:
            with socket.create_server(("", a.port)) as s:
                s.settimeout(3 * LIMIT)
                connection = s.accept()[0]
        connection.settimeout(10 * LIMIT)
        (ask if a.host else serve)(Talk(lib, a.far, connection), a)
        if a.counter:
            print(f"{a.counter}={lib.counter(a.counter)}")
    except Exception as e:
        print(f"error: {e if isinstance(e, Wrong) else repr(e)}")
        sys.exit(1)


if __name__ == "__main__":
    main()
