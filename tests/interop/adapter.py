#!/usr/bin/python3
"""A far end of the test's own, which answers and asks as adapters do, on frames that it writes itself.

    adapter.py [--build DIR] [--family 4|6]... [--habits rxe|adapter]... [--rxe] [CASE...]

A queue pair of the library under test is connected to it, in another network namespace.  It knows nothing of the library:
it writes and reads Ethernet frames (AF_PACKET) by the specification, and every packet that the library sends is judged by
frames.py.  So it shows what neither Verbena nor soft-RoCE does by itself: credits, NAKs where the test wants them, PSNs
that wrap, packets that are wrong in one thing only.

--rxe: the library under test is the system's, with soft-RoCE below it; for a machine whose kernel has it, as root."""
import argparse
import contextlib
import ipaddress
import json
import os
import random
import socket
import struct
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, "..", "strangers"))
import frames
import hosts
import offload
import stranger
from wire import FIELDS

MTU, LIMIT = 1024, 20
ACK, RNR, NAK_PSN, NAK_INVALID, NAK_ACCESS, NAK_OPERATION = 0x1F, 0x20, 0x60, 0x61, 0x62, 0x63
SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_LAST_IMM, SEND_ONLY, SEND_ONLY_IMM = range(6)
WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_LAST_IMM, WRITE_ONLY, WRITE_ONLY_IMM = range(6, 12)
READ, READ_FIRST, READ_MIDDLE, READ_LAST, READ_ONLY, ACKNOWLEDGE, ATOMIC_ACK, CMP_SWAP, FETCH_ADD = range(12, 21)
CNP = 0x81


class Wrong(Exception):
    pass


def want(what, got, expected):
    if got != expected:
        raise Wrong(f"{what}: {got!r}, not {expected!r}")


def past(psn, n=1):
    return (psn + n) & 0xFFFFFF


def pack(name, *values):
    return struct.pack(FIELDS[name][0], *values)


# ---- the far end ----

class Habits:
    """What differs between implementations, and is right of all."""

    def __init__(self, name):
        self.migreq, self.checksum, self.port = 0x40, False, 0xC123
        self.id, self.df = (lambda: 0), 0x4000
        if name == "rxe":
            self.migreq, self.id = 0, lambda: random.randrange(1 << 16)
        if name == "verbena":
            self.checksum = True


class Peer:
    """The interface of the far end: frames out and in."""

    def __init__(self, cfg, habits):
        self.packets = socket.socket(fileno=cfg["packets"])
        self.port = cfg["port"]  # bound, so that the kernel does not answer with ICMP
        self.mac, self.to_mac = bytes.fromhex(cfg["mac"]), bytes.fromhex(cfg["to_mac"])
        self.own, self.other = cfg["own"], cfg["other"]
        self.v6, self.habits = ":" in self.own, Habits(habits)

    def close(self):
        self.packets.detach()

    def frame(self, opcode, qpn, psn, rest=b"", ack_req=False, **odd):
        """odd: migreq, pkey, tver, icrc (to be wrong by), src, tos, solicited, reserved."""
        h, pad = self.habits, -len(rest) & 3
        flags = odd.get("migreq", h.migreq) | pad << 4 | odd.get("tver", 0) | 0x80 * odd.get("solicited", 0)
        ib = struct.pack(">BBHII", opcode, flags, odd.get("pkey", 0xFFFF), qpn, ack_req << 31 | psn) + rest + bytes(pad)
        src, dst = (ipaddress.ip_address(a).packed for a in (odd.get("src", self.own), self.other))
        length, tos = 8 + len(ib) + 4, odd.get("tos", 0)
        udp = struct.pack(">4H", odd.get("port", h.port), 4791, length, 0)
        if self.v6:
            ip = struct.pack(">IHBB", 6 << 28 | tos << 20, length, 17, 64) + src + dst
        else:
            ip = struct.pack(">BBHHHBBH", 0x45, tos, 20 + length, odd.get("id", h.id()), h.df, 64, 17, 0) + src + dst
            ip = ip[:10] + struct.pack(">H", 0xFFFF - frames._sum16(ip)) + ip[12:]
        ib += struct.pack("<I", frames.icrc(ip, self.v6, udp, ib) ^ odd.get("icrc", 0))
        if h.checksum:
            pseudo = src + dst + (struct.pack(">II", length, 17) if self.v6 else struct.pack(">BBH", 0, 17, length))
            udp = udp[:6] + struct.pack(">H", 0xFFFF - frames._sum16(pseudo + udp + ib) or 0xFFFF)
        return self.to_mac + self.mac + (b"\x86\xdd" if self.v6 else b"\x08\x00") + ip + udp + ib

    def send(self, *a, **odd):
        self.packets.send(self.frame(*a, **odd))

    def get(self, end):
        """The next packet that comes, right in all; None at the end of time."""
        while True:
            left = end - time.monotonic()
            if left <= 0:
                return None
            self.packets.settimeout(left)
            try:
                data, where = self.packets.recvfrom(65536)
            except socket.timeout:
                return None
            if where[2] == socket.PACKET_OUTGOING:
                continue
            p = frames.packet(frames.ETHERNET, memoryview(data), len(data), self.ours)
            if not p or p.dst != self.own:
                continue
            if p.wrong:
                raise Wrong(f"{p} is wrong: {'; '.join(p.wrong)}")
            p.payload = bytes(getattr(p, "payload", b""))
            return p


# ---- a connection ----

class Talk:
    """A queue pair of the library, connected to one of the far end's, and what was seen of it."""
    numbers = iter(range(0x4321, 1 << 20))

    def __init__(self, lib, peer, **options):
        self.lib, self.peer, self.qpn = lib, peer, next(self.numbers)
        self.psn = options.pop("rq_psn", 100)  # the far end's next request
        self.first = options.pop("sq_psn", 500)  # the library's first one
        self.msn = 0
        self.qp = lib.link(lib.create(), peer, self.qpn, rq_psn=self.psn, sq_psn=self.first, **options)

    # what comes
    def next(self, seconds=LIMIT):
        end = time.monotonic() + seconds
        while True:
            p = self.peer.get(end)
            if p is None or p.dqpn == self.qpn:
                return p

    def request(self, opcode, psn, **fields):
        """The next request.  What is older comes again, which is the library's affair."""
        while True:
            p = self.next()
            if p is None:
                raise Wrong(f"no request {opcode:#x} with PSN {psn} came")
            if p.opcode == ACKNOWLEDGE or 0 < (psn - p.psn) & 0xFFFFFF < 1 << 23:
                continue
            want(f"{p}: opcode and PSN", (p.opcode, p.psn), (opcode, psn))
            for k, v in fields.items():
                want(f"{p}: {k}", getattr(p, k), v)
            return p

    def again(self, opcode, psn):
        """A request that was seen comes again."""
        end = time.monotonic() + LIMIT
        while True:
            p = self.next(end - time.monotonic())
            if p is None:
                raise Wrong(f"request {opcode:#x} with PSN {psn} was not repeated")
            if (p.opcode, p.psn) == (opcode, psn):
                return p

    def answer(self, opcode, psn, **fields):
        while True:
            p = self.next()
            if p is None:
                raise Wrong(f"no answer {opcode:#x} with PSN {psn} came")
            if p.opcode not in range(READ_FIRST, ATOMIC_ACK + 1):
                continue
            if p.opcode == opcode == ACKNOWLEDGE and p.psn != psn and p.aeth >> 24 == ACK:
                continue  # of something before
            want(f"{p}: opcode and PSN", (p.opcode, p.psn), (opcode, psn))
            for k, v in fields.items():
                got = p.aeth >> 24 if k == "syndrome" else p.aeth & 0xFFFFFF if k == "msn" else getattr(p, k)
                want(f"{p}: {k}", got, v)
            return p

    # what goes
    def send(self, opcode, psn, rest=b"", **odd):
        self.peer.send(opcode, self.qp.qp_num, psn, rest, **odd)

    def ack(self, psn, syndrome=ACK, msn=None, **odd):
        if msn is None:
            msn = self.msn = self.msn + 1
        self.send(ACKNOWLEDGE, psn, pack("aeth", syndrome << 24 | msn & 0xFFFFFF), **odd)

    def marker(self):
        """Whatever was sent before has been looked at when this returns: a READ of nothing was answered."""
        self.send(READ, self.psn, pack("reth", 0, 0, 0), ack_req=True)
        self.answer(READ_ONLY, self.psn, payload_len=0)
        self.psn = past(self.psn)


class Library:
    """The verbs below test, by pyverbs."""

    def __init__(self, device, own, size=1 << 20):
        from pyverbs.cq import CQ
        from pyverbs.device import Context
        from pyverbs.mr import MR
        from pyverbs.pd import PD
        import pyverbs.enums as e
        self.e, self.device = e, device
        self.ctx = Context(name=device)
        self.pd, self.cq = PD(self.ctx), CQ(self.ctx, 256)
        self.mr = MR(self.pd, size, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ |
                     e.IBV_ACCESS_REMOTE_ATOMIC)
        address = ipaddress.ip_address(own if ":" in own else "::ffff:" + own)
        self.index, end = None, time.monotonic() + LIMIT
        while self.index is None and time.monotonic() < end:
            for i in range(8):
                with contextlib.suppress(Exception):
                    gid = self.ctx.query_gid(1, i)
                    if ipaddress.ip_address(gid.gid) == address:
                        self.index = i
                        break
        if self.index is None:
            raise Wrong(f"{device} has no GID {address}")

    def create(self, depth=64):
        from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
        e = self.e
        a = QPAttr(port_num=1)
        a.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
        cap = QPCap(max_send_wr=depth, max_recv_wr=depth, max_send_sge=1, max_recv_sge=1)
        return QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1), a)

    def link(self, q, peer, qpn, rq_psn, sq_psn, timeout=18, retry_cnt=7, rnr_retry=7, min_rnr_timer=12, reads=4):
        """Connects it to that queue pair."""
        from pyverbs.addr import AHAttr, GID, GlobalRoute
        from pyverbs.qp import QPAttr
        e = self.e
        text = ipaddress.ip_address(peer.own if peer.v6 else "::ffff:" + peer.own).exploded
        a = QPAttr(port_num=1)
        a.path_mtu, a.dest_qp_num, a.rq_psn = e.IBV_MTU_1024, qpn, rq_psn
        a.max_dest_rd_atomic, a.min_rnr_timer = reads, min_rnr_timer
        a.ah_attr = AHAttr(gr=GlobalRoute(dgid=GID(text), sgid_index=self.index), is_global=1, port_num=1)
        q.to_rtr(a)
        a.timeout, a.retry_cnt, a.rnr_retry, a.sq_psn, a.max_rd_atomic = timeout, retry_cnt, rnr_retry, sq_psn, reads
        q.to_rts(a)
        return q

    def counter(self, name):
        """Of the port; None: the library does not have it."""
        with contextlib.suppress(FileNotFoundError):
            with open(f"/sys/class/infiniband/{self.device}/ports/1/{name}", encoding="ascii") as f:
                return int(f.read())

    def sge(self, at, length):
        from pyverbs.wr import SGE
        return [SGE(self.mr.buf + at, length, self.mr.lkey)]

    def recv(self, t, wr_id, at, length):
        from pyverbs.wr import RecvWR
        t.qp.post_recv(RecvWR(wr_id=wr_id, num_sge=1, sg=self.sge(at, length)))

    def post(self, t, wr_id, opcode, at, length, remote=None, atomic=None):
        from pyverbs.wr import SendWR
        wr = SendWR(wr_id=wr_id, opcode=opcode, num_sge=1, sg=self.sge(at, length), send_flags=self.e.IBV_SEND_SIGNALED)
        if atomic:
            wr.set_wr_atomic(*atomic)
        elif remote:
            wr.set_wr_rdma(*remote)
        t.qp.post_send(wr)

    def post_sends(self, t, wr_ids, length):
        """All with one call."""
        from pyverbs.wr import SendWR
        wrs = [SendWR(wr_id=i, opcode=self.e.IBV_WR_SEND, num_sge=1, sg=self.sge(0, length),
                      send_flags=self.e.IBV_SEND_SIGNALED) for i in wr_ids]
        for wr, behind in zip(wrs, wrs[1:]):
            wr.next_wr = behind
        t.qp.post_send(wrs[0])

    def put(self, at, data):
        self.mr.write(data, len(data), at)

    def bytes(self, at, length):
        return bytes(self.mr.read(length, at))

    def poll(self):
        return self.cq.poll(8)[1]

    def done(self, wr_id, status=0, **fields):
        """The next completion is this one."""
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            got = self.cq.poll(1)[1]
            if got:
                want("completion", (got[0].wr_id, got[0].status), (wr_id, status))
                for k, v in fields.items():
                    want(f"completion {wr_id}: {k}", getattr(got[0], k), v)
                return
        raise Wrong(f"no completion {wr_id}")

    def none(self):
        want("completions", [(w.wr_id, w.status) for w in self.poll()], [])


def pattern(n, seed=1):
    return random.Random(seed).randbytes(n)


# ---- cases: the library asks ----

def sends(lib, peer):
    """SENDs of one packet and of several, with padding; one ACK is for all before it."""
    t = Talk(lib, peer)
    data = pattern(3001)
    lib.put(0, data)
    for i, n in enumerate((1, 5, 1024, 0)):
        lib.post(t, i, lib.e.IBV_WR_SEND, 0, n)
        p = t.request(SEND_ONLY, 500 + i, payload=data[:n], ack_req=True)
        t.ack(p.psn)
        lib.done(i)
    lib.post(t, 4, lib.e.IBV_WR_SEND, 0, 3001)
    for k, op in enumerate((SEND_FIRST, SEND_MIDDLE, SEND_LAST)):
        p = t.request(op, 504 + k, payload=data[k * MTU:(k + 1) * MTU])
    want("ack_req of the last packet", p.ack_req, True)
    lib.post(t, 5, lib.e.IBV_WR_SEND, 0, 8)
    t.request(SEND_ONLY, 507)
    t.ack(507, msn=6)
    lib.done(4)
    lib.done(5)


def writes(lib, peer):
    t = Talk(lib, peer)
    data = pattern(2 * MTU + 7, 2)
    lib.put(0, data)
    lib.post(t, 1, lib.e.IBV_WR_RDMA_WRITE, 0, len(data), (0x1234, 0x7000_0000_1000))
    t.request(WRITE_FIRST, 500, va=0x7000_0000_1000, rkey=0x1234, dmalen=len(data), payload=data[:MTU])
    t.request(WRITE_MIDDLE, 501, payload=data[MTU:2 * MTU])
    t.request(WRITE_LAST, 502, payload=data[2 * MTU:], ack_req=True)
    t.ack(502)
    lib.done(1)


def reads(lib, peer):
    """READ responses of one packet and of several; they acknowledge the SEND before."""
    t = Talk(lib, peer)
    data = pattern(2 * MTU + 9, 3)
    lib.post(t, 1, lib.e.IBV_WR_SEND, 0, 4)
    lib.post(t, 2, lib.e.IBV_WR_RDMA_READ, 4096, 16, (7, 0x5000))
    lib.post(t, 3, lib.e.IBV_WR_RDMA_READ, 8192, len(data), (7, 0x6000))
    t.request(SEND_ONLY, 500)
    t.request(READ, 501, va=0x5000, rkey=7, dmalen=16)
    t.request(READ, 502, va=0x6000, rkey=7, dmalen=len(data))
    aeth = lambda msn: pack("aeth", ACK << 24 | msn)
    t.send(READ_ONLY, 501, aeth(2) + data[:16])
    lib.done(1)
    lib.done(2)
    t.send(READ_FIRST, 502, aeth(3) + data[:MTU])
    t.send(READ_MIDDLE, 503, data[MTU:2 * MTU])
    t.send(READ_LAST, 504, aeth(3) + data[2 * MTU:])
    lib.done(3)
    want("bytes of the first READ", lib.bytes(4096, 16), data[:16])
    want("bytes of the second READ", lib.bytes(8192, len(data)), data)
    lib.post(t, 4, lib.e.IBV_WR_SEND, 0, 4)
    t.request(SEND_ONLY, 505)  # a READ takes as many PSNs as its response has packets
    t.ack(505, msn=4)
    lib.done(4)


def read_response_lost(lib, peer):
    """The middle of a READ response is lost: it is asked for the rest, and the bytes are right."""
    t = Talk(lib, peer)
    data = pattern(4 * MTU, 4)
    lib.post(t, 1, lib.e.IBV_WR_RDMA_READ, 0, len(data), (7, 0x10000))
    t.request(READ, 500, dmalen=len(data))
    aeth = pack("aeth", ACK << 24 | 1)
    t.send(READ_FIRST, 500, aeth + data[:MTU])
    t.send(READ_MIDDLE, 502, data[2 * MTU:3 * MTU])
    t.send(READ_LAST, 503, aeth + data[3 * MTU:])
    end = time.monotonic() + LIMIT
    while True:
        p = t.next(end - time.monotonic())
        if p is None:
            raise Wrong("nobody asks for the rest")
        if p.opcode == READ:
            break
    k = p.psn - 500
    if k not in (0, 1):
        raise Wrong(f"{p} asks from packet {k}")
    want(f"{p}: address and length", (p.va, p.dmalen), (0x10000 + k * MTU, (4 - k) * MTU))
    middle = peer.habits.migreq == 0  # soft-RoCE goes on in the middle, adapters begin again
    for i in range(k, 4):
        op = READ_LAST if i == 3 else READ_FIRST if i == k and not (middle and k) else READ_MIDDLE
        t.send(op, 500 + i, (b"" if op == READ_MIDDLE else aeth) + data[i * MTU:(i + 1) * MTU])
    lib.done(1)
    want("bytes", lib.bytes(0, len(data)), data)


def atomics(lib, peer):
    t = Talk(lib, peer)
    lib.post(t, 1, lib.e.IBV_WR_ATOMIC_FETCH_AND_ADD, 64, 8, atomic=(9, 0x8000, 5, 0))
    p = t.request(FETCH_ADD, 500, va=0x8000, rkey=9, swap=5)
    t.send(ATOMIC_ACK, p.psn, pack("aeth", ACK << 24 | 1) + pack("orig", 0x1122334455667788))
    lib.done(1)
    want("value", int.from_bytes(lib.bytes(64, 8), sys.byteorder), 0x1122334455667788)
    lib.post(t, 2, lib.e.IBV_WR_ATOMIC_CMP_AND_SWP, 64, 8, atomic=(9, 0x8008, 3, 4))
    p = t.request(CMP_SWAP, 501, va=0x8008, rkey=9, compare=3, swap=4)
    t.send(ATOMIC_ACK, p.psn, pack("aeth", ACK << 24 | 2) + pack("orig", 3))
    lib.done(2)
    want("value", int.from_bytes(lib.bytes(64, 8), sys.byteorder), 3)


def psn_wraps(lib, peer):
    """PSN 0 follows 0xFFFFFF, of requests and of READ responses."""
    t = Talk(lib, peer, sq_psn=0xFFFFFE)
    data = pattern(4 * MTU, 5)
    lib.put(0, data)
    lib.post(t, 1, lib.e.IBV_WR_SEND, 0, len(data))
    for k, op in enumerate((SEND_FIRST, SEND_MIDDLE, SEND_MIDDLE, SEND_LAST)):
        t.request(op, past(0xFFFFFE, k), payload=data[k * MTU:(k + 1) * MTU])
    t.ack(1)
    lib.done(1)
    t = Talk(lib, peer, sq_psn=0xFFFFFF)
    lib.post(t, 2, lib.e.IBV_WR_RDMA_READ, 8192, 2 * MTU, (7, 0x5000))
    t.request(READ, 0xFFFFFF)
    t.send(READ_FIRST, 0xFFFFFF, pack("aeth", ACK << 24 | 1) + data[:MTU])
    t.send(READ_LAST, 0, pack("aeth", ACK << 24 | 1) + data[MTU:2 * MTU])
    lib.done(2)
    want("bytes", lib.bytes(8192, 2 * MTU), data[:2 * MTU])


def nak_sequence(lib, peer):
    """It goes on from the PSN that a NAK names."""
    t = Talk(lib, peer)
    data = pattern(4 * MTU, 6)
    lib.put(0, data)
    lib.post(t, 1, lib.e.IBV_WR_SEND, 0, len(data))
    for k, op in enumerate((SEND_FIRST, SEND_MIDDLE, SEND_MIDDLE, SEND_LAST)):
        t.request(op, 500 + k)
    t.ack(502, NAK_PSN, msn=0)
    p = t.again(SEND_MIDDLE, 502)
    want("bytes", p.payload, data[2 * MTU:3 * MTU])
    p = t.again(SEND_LAST, 503)
    want("bytes", p.payload, data[3 * MTU:])
    t.ack(503)
    lib.done(1)


def rnr(lib, peer):
    """It waits as long as the NAK says (10.24 ms), and goes on with the same PSN."""
    t = Talk(lib, peer)
    lib.post(t, 1, lib.e.IBV_WR_SEND, 0, 8)
    t.request(SEND_ONLY, 500)
    waited = []
    while sum(w >= 0.0102 for w in waited) < 3:
        if len(waited) == 12:
            raise Wrong("it waited " + ", ".join(f"{w * 1000:.2f}" for w in waited) + " ms")
        while peer.get(time.monotonic() + 0.0001):  # repetitions that are on their way; one may cross the NAK
            pass
        began = time.monotonic()
        t.ack(500, RNR | 20, msn=0)
        t.again(SEND_ONLY, 500)
        waited.append(time.monotonic() - began)
    t.ack(500)
    lib.done(1)


def rnr_ends(lib, peer):
    """rnr_retry 1: the second NAK ends it."""
    t = Talk(lib, peer, rnr_retry=1)
    lib.post(t, 1, lib.e.IBV_WR_SEND, 0, 8)
    t.request(SEND_ONLY, 500)
    t.ack(500, RNR | 1, msn=0)
    t.again(SEND_ONLY, 500)
    t.ack(500, RNR | 1, msn=0)
    lib.done(1, lib.e.IBV_WC_RNR_RETRY_EXC_ERR)


def naks(lib, peer):
    """Each NAK ends the request with its status, and what follows is flushed."""
    e = lib.e
    for code, status in ((NAK_INVALID, e.IBV_WC_REM_INV_REQ_ERR), (NAK_ACCESS, e.IBV_WC_REM_ACCESS_ERR),
                         (NAK_OPERATION, e.IBV_WC_REM_OP_ERR)):
        t = Talk(lib, peer)
        lib.post(t, 1, e.IBV_WR_SEND, 0, 8)
        lib.post(t, 2, e.IBV_WR_RDMA_WRITE, 0, 8, (1, 0x1000))
        lib.post(t, 3, e.IBV_WR_SEND, 0, 8)
        t.request(SEND_ONLY, 500)
        t.request(WRITE_ONLY, 501)
        t.ack(501, code, msn=1)
        lib.done(1)
        lib.done(2, status)
        lib.done(3, e.IBV_WC_WR_FLUSH_ERR)


def naks_of_atomics(lib, peer):
    """A NAK is an Acknowledge also where an atomic was asked for; one that comes in an ATOMIC Acknowledge counts."""
    e = lib.e
    for op in ACKNOWLEDGE, ATOMIC_ACK:
        t = Talk(lib, peer)
        lib.post(t, 1, e.IBV_WR_ATOMIC_FETCH_AND_ADD, 64, 8, atomic=(9, 0x8000, 5, 0))
        t.request(FETCH_ADD, 500)
        rest = pack("orig", 0) if op == ATOMIC_ACK else b""
        t.send(op, 500, pack("aeth", NAK_PSN << 24) + rest)
        t.again(FETCH_ADD, 500)
        t.send(op, 500, pack("aeth", NAK_ACCESS << 24) + rest)
        lib.done(1, e.IBV_WC_REM_ACCESS_ERR)
    t = Talk(lib, peer)
    head = struct.pack(">QIQQ", lib.mr.buf + 65536, lib.mr.rkey, 11, 0)
    t.send(FETCH_ADD, 101, head, ack_req=True)
    t.answer(ACKNOWLEDGE, 100, syndrome=NAK_PSN)
    t.send(FETCH_ADD, 100, struct.pack(">QIQQ", lib.mr.buf + 65536, lib.mr.rkey ^ 0x5555, 11, 0), ack_req=True)
    t.answer(ACKNOWLEDGE, 100, syndrome=NAK_ACCESS)


def reserved_naks(lib, peer):
    """A code that the specification does not have ends the request too, and does not make it go again for ever."""
    for code in 0x65, 0x7E, 0x7F:
        t = Talk(lib, peer)
        lib.post(t, 1, lib.e.IBV_WR_SEND, 0, 8)
        t.request(SEND_ONLY, 500)
        t.ack(500, code, msn=0)
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            got = lib.poll()
            if got:
                if got[0].status in (lib.e.IBV_WC_SUCCESS, lib.e.IBV_WC_RETRY_EXC_ERR):
                    raise Wrong(f"NAK {code:#x}: status {got[0].status}")
                break
        else:
            raise Wrong(f"NAK {code:#x} had no consequence")


def silence(lib, peer):
    """Nobody answers: it repeats by its timer, and gives up after retry_cnt."""
    t = Talk(lib, peer, timeout=12, retry_cnt=2)
    lib.post(t, 1, lib.e.IBV_WR_SEND, 0, 8)
    t.request(SEND_ONLY, 500)
    for _ in range(2):
        t.again(SEND_ONLY, 500)
    lib.done(1, lib.e.IBV_WC_RETRY_EXC_ERR)


def lost_ack(lib, peer):
    """The ACK of a request is lost: it comes again, and is complete once."""
    t = Talk(lib, peer, timeout=12)
    lib.post(t, 1, lib.e.IBV_WR_SEND, 0, 8)
    t.request(SEND_ONLY, 500)
    t.again(SEND_ONLY, 500)
    t.ack(500, msn=1)
    t.ack(500, msn=1)
    lib.done(1)
    t.marker()
    lib.none()


def strange_acks(lib, peer):
    """What acknowledges nothing, or is not from where the connection leads, has no effect."""
    t = Talk(lib, peer)
    lib.post(t, 1, lib.e.IBV_WR_SEND, 0, 8)
    t.request(SEND_ONLY, 500)
    near = peer.own[:-1] + "7"
    for what, psn, odd in (("an ACK of a PSN that is older", 499, {}), ("that was not sent", 501, {}), ("far ahead", 500 + (1 << 22), {}),
                           ("from another address", 500, {"src": near}), ("with a wrong ICRC", 500, {"icrc": 1 << 9}),
                           ("of another partition", 500, {"pkey": 0x8123}), ("of another version", 500, {"tver": 1})):
        t.ack(psn, msn=1, **odd)
        t.marker()
        got = lib.poll()
        if got:
            raise Wrong(f"{what}: completion {got[0].wr_id} with status {got[0].status}")
    t.ack(500, msn=1)
    lib.done(1)


def credits(lib, peer):
    """A far end that has no receive request left says so by its credits: at most one SEND is on its way then."""
    t = Talk(lib, peer)
    lib.post(t, 0, lib.e.IBV_WR_SEND, 0, 8)
    t.request(SEND_ONLY, 500)
    t.ack(500, syndrome=0)  # none
    lib.done(0)
    lib.post_sends(t, range(1, 4), 8)
    for i in range(1, 4):
        t.request(SEND_ONLY, 500 + i, ack_req=True)
        t.send(READ, t.psn, pack("reth", 0, 0, 0), ack_req=True)
        while True:  # until the answer, which is behind whatever else would be sent
            p = t.next()
            if p is None:
                raise Wrong("the READ has no answer")
            if p.opcode == READ_ONLY and p.psn == t.psn:
                break
            if p.opcode == SEND_ONLY and p.psn > 500 + i:
                raise Wrong(f"{p} though there are no credits")
        t.psn = past(t.psn)
        t.ack(500 + i, syndrome=0)
        lib.done(i)
    for i in range(4, 7):  # three credits (code 3)
        lib.post(t, i, lib.e.IBV_WR_SEND, 0, 8)
    t.request(SEND_ONLY, 504)
    t.ack(504, syndrome=3)
    t.request(SEND_ONLY, 505)
    t.request(SEND_ONLY, 506)
    t.ack(506, msn=7)
    for i in range(4, 7):
        lib.done(i)


def congestion(lib, peer):
    """A CNP and marks of ECN: the connection goes on."""
    t = Talk(lib, peer)
    lib.recv(t, 9, 4096, 64)
    lib.post(t, 1, lib.e.IBV_WR_SEND, 0, 8)
    t.request(SEND_ONLY, 500)
    t.send(CNP, 0, bytes(16))
    t.ack(500)
    lib.done(1)
    t.send(SEND_ONLY, t.psn, b"marked", ack_req=True, tos=3)
    t.answer(ACKNOWLEDGE, t.psn, syndrome=ACK)
    lib.done(9, byte_len=6)


# ---- cases: the library answers ----

def takes_sends(lib, peer):
    """SENDs come in; each is acknowledged with the number of messages so far."""
    t = Talk(lib, peer)
    data = pattern(2 * MTU + 3, 7)
    for i in range(4):
        lib.recv(t, i, 4096 * i, 4096)
    for i, n in enumerate((0, 7)):
        t.send(SEND_ONLY, 100 + i, data[:n], ack_req=True)
        t.answer(ACKNOWLEDGE, 100 + i, syndrome=ACK, msn=i + 1)
        lib.done(i, byte_len=n)
    t.send(SEND_FIRST, 102, data[:MTU])
    t.send(SEND_MIDDLE, 103, data[MTU:2 * MTU])
    t.send(SEND_LAST, 104, data[2 * MTU:], ack_req=True)
    t.answer(ACKNOWLEDGE, 104, syndrome=ACK, msn=3)
    lib.done(2, byte_len=len(data))
    want("bytes", lib.bytes(8192, len(data)), data)
    t.send(SEND_ONLY_IMM, 105, pack("imm", 0xAABBCCDD) + b"x", ack_req=True, solicited=1)
    t.answer(ACKNOWLEDGE, 105, syndrome=ACK, msn=4)
    lib.done(3, byte_len=1)


def takes_writes(lib, peer):
    t = Talk(lib, peer)
    data = pattern(3 * MTU + 1, 8)
    lib.recv(t, 5, 0, 0)
    lib.put(65536, bytes(4096))
    head = pack("reth", lib.mr.buf + 65536, lib.mr.rkey, len(data))
    t.send(WRITE_FIRST, 100, head + data[:MTU])
    t.send(WRITE_MIDDLE, 101, data[MTU:2 * MTU])
    t.send(WRITE_MIDDLE, 102, data[2 * MTU:3 * MTU])
    t.send(WRITE_LAST, 103, data[3 * MTU:], ack_req=True)
    t.answer(ACKNOWLEDGE, 103, syndrome=ACK, msn=1)
    want("bytes", lib.bytes(65536, len(data)), data)
    want("bytes behind", lib.bytes(65536 + len(data), 16), bytes(16))
    t.send(WRITE_ONLY_IMM, 104, pack("reth", lib.mr.buf + 65536, lib.mr.rkey, 5) + pack("imm", 1) + b"hello", ack_req=True)
    t.answer(ACKNOWLEDGE, 104, syndrome=ACK, msn=2)
    lib.done(5, byte_len=5)
    want("bytes", lib.bytes(65536, 5), b"hello")


def gives_reads(lib, peer):
    """READs are answered, also once more; of nothing too, and across the end of PSNs."""
    for first in 100, 0xFFFFFE:
        t = Talk(lib, peer, rq_psn=first)
        data = pattern(3 * MTU + 5, 9)
        lib.put(65536, data)
        for again in 0, 1:
            t.send(READ, first, pack("reth", lib.mr.buf + 65536, lib.mr.rkey, len(data)), ack_req=True)
            got = b""
            for k, op in enumerate((READ_FIRST, READ_MIDDLE, READ_MIDDLE, READ_LAST)):
                p = t.answer(op, past(first, k))
                got += p.payload
                if op != READ_MIDDLE:
                    want(f"{p}: syndrome and MSN", p.aeth, ACK << 24 | 1)
            want(f"bytes, time {again + 1}", got, data)
        t.psn = past(first, 4)
        t.marker()
        # The second half once more, as a requester asks that lost it.
        t.send(READ, past(first, 2), pack("reth", lib.mr.buf + 65536 + 2 * MTU, lib.mr.rkey, len(data) - 2 * MTU), ack_req=True)
        want("bytes of the second half", t.answer(READ_FIRST, past(first, 2)).payload, data[2 * MTU:3 * MTU])
        want("bytes of the second half", t.answer(READ_LAST, past(first, 3)).payload, data[3 * MTU:])


def does_atomics(lib, peer):
    """Once, however often it is asked."""
    t = Talk(lib, peer)
    lib.put(65536, struct.pack("=Q", 1000))
    head = struct.pack(">QI", lib.mr.buf + 65536, lib.mr.rkey)
    for _ in range(3):
        t.send(FETCH_ADD, 100, head + struct.pack(">QQ", 11, 0), ack_req=True)
        t.answer(ATOMIC_ACK, 100, orig=1000, syndrome=ACK, msn=1)
    t.send(CMP_SWAP, 101, head + struct.pack(">QQ", 77, 1011), ack_req=True)
    t.answer(ATOMIC_ACK, 101, orig=1011, msn=2)
    t.send(CMP_SWAP, 102, head + struct.pack(">QQ", 78, 1), ack_req=True)
    t.answer(ATOMIC_ACK, 102, orig=77, msn=3)
    t.send(CMP_SWAP, 101, head + struct.pack(">QQ", 77, 1011), ack_req=True)
    t.answer(ATOMIC_ACK, 101, orig=1011)
    want("value", struct.unpack("=Q", lib.bytes(65536, 8))[0], 77)


def duplicates(lib, peer):
    """A SEND that comes again is acknowledged again, and is complete once."""
    t = Talk(lib, peer)
    for i in range(3):
        lib.recv(t, i, 64 * i, 64)
    t.send(SEND_ONLY, 100, b"once", ack_req=True)
    t.answer(ACKNOWLEDGE, 100, msn=1)
    lib.done(0, byte_len=4)
    t.send(SEND_ONLY, 100, b"once", ack_req=True)
    t.answer(ACKNOWLEDGE, 100, msn=1)
    lib.none()
    t.send(SEND_ONLY, 101, b"twice", ack_req=True)
    t.answer(ACKNOWLEDGE, 101, msn=2)
    lib.done(1, byte_len=5)


def gap(lib, peer):
    """A packet is missing: one NAK with the PSN that is expected; what comes from there on is taken."""
    t = Talk(lib, peer)
    data = pattern(3 * MTU, 10)
    lib.recv(t, 1, 0, 4096)
    t.send(SEND_FIRST, 100, data[:MTU])
    t.send(SEND_LAST, 102, data[2 * MTU:], ack_req=True)
    t.answer(ACKNOWLEDGE, 101, syndrome=NAK_PSN)
    lib.none()
    t.send(SEND_MIDDLE, 101, data[MTU:2 * MTU])
    t.send(SEND_LAST, 102, data[2 * MTU:], ack_req=True)
    t.answer(ACKNOWLEDGE, 102, syndrome=ACK, msn=1)
    lib.done(1, byte_len=len(data))
    want("bytes", lib.bytes(0, len(data)), data)


def not_ready(lib, peer):
    """No receive request: an RNR NAK with the queue pair's timer, until there is one."""
    t = Talk(lib, peer, min_rnr_timer=9)
    for _ in range(2):
        t.send(SEND_ONLY, 100, b"wait", ack_req=True)
        t.answer(ACKNOWLEDGE, 100, syndrome=RNR | 9)
    lib.recv(t, 1, 0, 64)
    t.send(SEND_ONLY, 100, b"wait", ack_req=True)
    t.answer(ACKNOWLEDGE, 100, syndrome=ACK, msn=1)
    lib.done(1, byte_len=4)


def late_ack(lib, peer):
    """Packets that ask for no ACK, then one that does."""
    t = Talk(lib, peer)
    for i in range(8):
        lib.recv(t, i, 64 * i, 64)
    for i in range(8):
        t.send(SEND_ONLY, 100 + i, bytes([i]) * 8, ack_req=i == 7)
    t.answer(ACKNOWLEDGE, 107, syndrome=ACK, msn=8)
    for i in range(8):
        lib.done(i, byte_len=8)


def no_access(lib, peer):
    """A key that is none, and bytes outside of the region: a NAK, and not a byte is touched."""
    for what, rkey, at, n in ("a key", 0x55555555, 65536, 8), ("an address", None, 1 << 20, 8), ("a length", None, (1 << 20) - 4, 8):
        for op in WRITE_ONLY, READ:
            t = Talk(lib, peer)
            lib.recv(t, 1, 0, 64)
            before = lib.bytes(65536, 16) + lib.bytes((1 << 20) - 8, 8)
            rest = pack("reth", lib.mr.buf + at, lib.mr.rkey if rkey is None else rkey, n)
            t.send(op, 100, rest + (b"overrun!" if op == WRITE_ONLY else b""), ack_req=True)
            t.answer(ACKNOWLEDGE, 100, syndrome=NAK_ACCESS)
            want(f"{what}: bytes", lib.bytes(65536, 16) + lib.bytes((1 << 20) - 8, 8), before)
            lib.done(1, lib.e.IBV_WC_WR_FLUSH_ERR)


def invalid(lib, peer):
    """What cannot follow: a NAK of an invalid request."""
    two = 2 * MTU
    for what, packets in {
            "a Middle that nothing began": [(SEND_MIDDLE, bytes(MTU))],
            "a Last of a WRITE in a SEND": [(SEND_FIRST, bytes(MTU)), (WRITE_LAST, bytes(8))],
            "a First that is short": [(SEND_FIRST, bytes(512))],
            "a First behind a First": [(SEND_FIRST, bytes(MTU)), (SEND_FIRST, bytes(MTU))],
            "more bytes than the WRITE announced": [(WRITE_FIRST, pack("reth", lib.mr.buf + 65536, lib.mr.rkey, MTU + 4) + bytes(MTU)),
                                                    (WRITE_LAST, bytes(8))],
            "fewer bytes than the WRITE announced": [(WRITE_FIRST, pack("reth", lib.mr.buf + 65536, lib.mr.rkey, two) + bytes(MTU)),
                                                     (WRITE_LAST, bytes(8))],
            "an Only longer than the path MTU": [(SEND_ONLY, bytes(MTU + 4))]}.items():
        t = Talk(lib, peer)
        lib.recv(t, 1, 0, 8192)
        for k, (op, rest) in enumerate(packets):
            t.send(op, 100 + k, rest, ack_req=k == len(packets) - 1)
        try:
            t.answer(ACKNOWLEDGE, 100 + len(packets) - 1, syndrome=NAK_INVALID)
        except Wrong as e:
            raise Wrong(f"{what}: {e}") from None
        end = time.monotonic() + LIMIT
        while time.monotonic() < end and not lib.poll():
            pass


def wrong_requests(lib, peer):
    """SENDs that are wrong in one thing are discarded; the right one is taken behind each.  Wrong ICRCs are counted."""
    t = Talk(lib, peer)
    counter = "hw_counters/rx_icrc_encapsulated"  # soft-RoCE has none
    before = lib.counter(counter)
    near = peer.own[:-1] + "7"
    for i, (what, odd) in enumerate((("an ICRC", {"icrc": 1}), ("a partition", {"pkey": 0x7123}), ("a version", {"tver": 2}),
                                     ("a source", {"src": near}))):
        lib.recv(t, i, 0, 64)
        t.send(SEND_ONLY, t.psn, b"wrong", ack_req=True, **odd)
        t.send(SEND_ONLY, t.psn, b"right", ack_req=True)
        t.answer(ACKNOWLEDGE, t.psn, syndrome=ACK, msn=i + 1)
        t.psn = past(t.psn)
        lib.done(i, byte_len=5)
        want(f"{what}: bytes", lib.bytes(0, 5), b"right")
        lib.none()
    if before is not None:
        want("wrong ICRCs counted", lib.counter(counter) - before, 1)


def both_ways(lib, peer):
    """A SEND and the answer to it cross each other, a hundred times."""
    t = Talk(lib, peer)
    for i in range(100):
        lib.recv(t, 1000 + i, 4096, 64)
        lib.post(t, i, lib.e.IBV_WR_SEND, 0, 8)
        t.send(SEND_ONLY, past(100, i), struct.pack(">I", i), ack_req=True)
        got = set()
        while got != {"request", "answer"}:
            p = t.next()
            if p is None:
                raise Wrong(f"turn {i}: only {got} came")
            if p.opcode == SEND_ONLY and p.psn == past(500, i):
                got.add("request")
            elif p.opcode == ACKNOWLEDGE and p.psn == past(100, i):
                want(f"{p}: syndrome", p.aeth >> 24, ACK)
                got.add("answer")
        t.ack(past(500, i))
        ids, end = set(), time.monotonic() + LIMIT
        while len(ids) < 2 and time.monotonic() < end:
            ids |= {w.wr_id for w in lib.poll() if w.status == 0}
        want(f"turn {i}: completions", ids, {i, 1000 + i})


CASES = [sends, writes, reads, read_response_lost, atomics, psn_wraps, nak_sequence, rnr, rnr_ends, naks, naks_of_atomics, reserved_naks, silence,
         lost_ack, strange_acks, credits, congestion, takes_sends, takes_writes, gives_reads, does_atomics, duplicates, gap,
         not_ready, late_ack, no_access, invalid, wrong_requests, both_ways]
# What soft-RoCE (Linux 6.1) does in another way.
RXE_OTHER = {"rnr": "its timer counts ticks of the clock, and ends up to one early",
             "strange_acks": "it believes an ACK of what it has not sent", "credits": "it does not know them",
             "gives_reads": "a READ of the second half is answered by Middle and Last",
             "naks_of_atomics": "it takes no NAK in an ATOMIC Acknowledge", "invalid": "it takes a First that is shorter than the path MTU"}


def inside(cfg):
    """Where the library under test is."""
    failed = done = 0
    lib = Library(cfg["device"], cfg["other"])
    for habits in cfg["habits"]:
        peer = Peer(cfg, habits)
        peer.ours = (cfg["other"],) if not cfg["rxe"] else ()
        for case in CASES:
            if cfg["cases"] and not any(c in case.__name__ for c in cfg["cases"]):
                continue
            name, began = f"IPv{6 if peer.v6 else 4}, as {habits}: {case.__name__}", time.monotonic()
            done += 1
            try:
                case(lib, peer)
                print(f"ok      {name}  ({time.monotonic() - began:.2f} s)", flush=True)
            except Exception as e:  # what a call of the library raised is a failure of the case as well
                known = cfg["rxe"] and RXE_OTHER.get(case.__name__)
                failed += not known
                print(f"{f'known   {name} ({known})' if known else f'FAILED  {name}'}: {e if isinstance(e, Wrong) else repr(e)}",
                      flush=True)
            while lib.poll():
                pass
        peer.close()
    return 1 if failed or not done else 0


def mac(net, nic):
    """Of an interface there."""
    r = subprocess.run(["ip", "-j", "link", "show", "dev", nic], capture_output=True, text=True, check=True, close_fds=False,
                       preexec_fn=None if net is None else lambda: hosts.enter(net))
    return json.loads(r.stdout)[0]["address"].replace(":", "")


def run(a, argv, nets, nics, addresses, device):
    """The library's end is nets[0] (None: this one), the far end nets[1]."""
    if not offload.cut_in(nets[0], nics[0]):
        stranger.skip("the interface cannot be told to cut messages")
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    hosts.enter(nets[1])
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    packets.bind((nics[1], 3))
    port = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    port.bind(("::", 4791))
    port.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)
    hosts.enter(home)
    os.close(home)
    packets.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    cfg = {"packets": packets.fileno(), "port": port.fileno(), "mac": mac(nets[1], nics[1]), "to_mac": mac(nets[0], nics[0]),
           "own": addresses[1], "other": addresses[0], "habits": a.habits, "rxe": a.rxe, "cases": a.cases, "device": device}
    try:
        return subprocess.run([*argv, "/usr/bin/python3", os.path.abspath(__file__), "--inside", json.dumps(cfg)], check=False,
                              pass_fds=(packets.fileno(), port.fileno()), stdin=subprocess.DEVNULL,
                              preexec_fn=None if nets[0] is None else lambda: hosts.enter(nets[0])).returncode
    finally:
        packets.close()
        port.close()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", default=os.path.join(HERE, "..", "..", "build"))
    p.add_argument("--family", action="append", type=int, choices=(4, 6))
    p.add_argument("--habits", action="append", choices=("rxe", "adapter", "verbena"))
    p.add_argument("--rxe", action="store_true")
    p.add_argument("--inside", help=argparse.SUPPRESS)
    p.add_argument("cases", nargs="*")
    a = p.parse_args()
    a.family, a.habits = a.family or [4, 6], a.habits or ["rxe", "adapter", "verbena"]
    if a.inside:
        sys.exit(inside(json.loads(a.inside)))
    try:
        import pyverbs.device  # noqa: F401
    except ImportError as e:
        stranger.skip(f"{e} (scripts/deps test)")
    worst = 0
    if a.rxe:
        import rxe
        rxe.modules()
        with rxe.wire("mixed", 1500, a.build) as ends:
            far = os.open(f"/run/netns/{rxe.PEER}", os.O_RDONLY)
            for family in a.family:
                addresses = [e.addresses[family == 6] for e in ends]
                worst |= run(a, [], (None, far), rxe.ENDS, addresses, ends[0].device)
        sys.exit(worst)
    hosts.alone()
    argv = [os.path.join(os.path.abspath(a.build), "verbena"), "run", "--netdev", hosts.NIC, "--"]
    with hosts.Hosts(count=2, mtu=1500) as h:
        for family in a.family:
            if family == 6 and not h.ipv6:
                print("SKIP: no IPv6 here")
                continue
            worst |= run(a, argv, h.nets, (hosts.NIC, hosts.NIC), [h.address(i, family) for i in (0, 1)], "verbena0")
    sys.exit(1 if worst else 0)


if __name__ == "__main__":
    main()
