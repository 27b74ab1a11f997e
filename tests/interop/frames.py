#!/usr/bin/python3
"""Judges the RoCEv2 packets of a capture, each by itself.

    frames.py [--ours ADDRESS]... [--only ADDRESS]... FILE...

It reads pcap and pcapng, Ethernet or bare IP.  It computes the ICRC of each packet from the frame's own bytes, and checks
lengths, pads, reserved bits, P_Key and transport version.  --ours names an address whose packets must also be what
Verbena promises: MigReq 1, "do not fragment", no limit of credits, a source port of 0xC000 or above, and that a
retransmitted packet is the one that went out before.

It prints each wrong frame with its number, and at the end a line with counts for each source.  The exit status is 1 if a
frame is wrong or if no RoCEv2 packet was found, and 2 if a file cannot be read.

Nothing here is the product's code.  The formats are those of the InfiniBand specification (volume 1, 9.2 to 9.7; annex
A17: RoCEv2, with CNP in A17.9), and of the pcap and pcapng drafts."""
import argparse
import collections
import ipaddress
import os
import struct
import sys
import zlib

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "strangers"))
from wire import FAMILIES, FIELDS, OPERATIONS, ROCE

CNP = 0x81
SIZES = {h: struct.calcsize(form) for h, (form, _) in FIELDS.items()}
ETHERNET, RAW, RAW_BSD = 1, 101, 12
CODES = range(0x60, 0x65)  # the NAK codes that the specification has


class Unreadable(Exception):
    pass


# ---- files ----

def _pcap(data, order):
    link = struct.unpack_from(order + "I", data, 20)[0] & 0xFFFF
    at = 24
    while at + 16 <= len(data):
        kept, length = struct.unpack_from(order + "II", data, at + 8)
        if at + 16 + kept > len(data):
            break  # whoever captured was ended in the middle of a frame
        yield link, data[at + 16:at + 16 + kept], length
        at += 16 + kept


def _pcapng(data):
    at, order, links = 0, "<", []
    while at + 12 <= len(data):
        kind = struct.unpack_from("<I", data, at)[0]
        if kind == 0x0A0D0D0A:
            order = "<" if data[at + 8:at + 12] == b"\x4d\x3c\x2b\x1a" else ">"
            links = []
        kind, length = struct.unpack_from(order + "II", data, at)
        if length < 12 or length % 4:
            raise Unreadable(f"a block of length {length} at byte {at}")
        if at + length > len(data):
            break
        if kind == 1:
            links.append(struct.unpack_from(order + "H", data, at + 8)[0])
        elif kind == 6:
            interface, _, _, kept, whole = struct.unpack_from(order + "5I", data, at + 8)
            yield links[interface], data[at + 28:at + 28 + kept], whole
        at += length


def frames(path):
    """(link type, bytes, length on the wire) of each frame."""
    with open(path, "rb") as f:
        data = memoryview(f.read())
    magic = bytes(data[:4])
    if magic == b"\x0a\x0d\x0d\x0a":
        return _pcapng(data)
    for order in "<", ">":
        if magic in (struct.pack(order + "I", 0xA1B2C3D4), struct.pack(order + "I", 0xA1B23C4D)):
            return _pcap(data, order)
    raise Unreadable("neither pcap nor pcapng")


# ---- one packet ----

def icrc(ip, v6, udp, ib):
    """Over the packet without its ICRC.  What a router may change counts as ones, behind eight bytes of ones (A17.3.3)."""
    ip, udp, bth = bytearray(ip), bytearray(udp), bytearray(ib[:12])
    if v6:
        ip[0] |= 0x0F
        ip[1] = ip[2] = ip[3] = ip[7] = 0xFF
    else:
        ip[1] = ip[8] = ip[10] = ip[11] = 0xFF
    udp[6] = udp[7] = bth[4] = 0xFF
    return zlib.crc32(ib[12:], zlib.crc32(b"\xff" * 8 + bytes(ip) + bytes(udp) + bytes(bth)))


def _sum16(data):
    data = bytes(data) + bytes(len(data) & 1)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


class Packet:
    """What a frame has; wrong lists what is wrong with it.  op is None if the BTH could not be reached."""

    def __init__(self):
        self.wrong, self.op, self.src, self.dst, self.payload_len, self.request = [], None, None, None, 0, None

    def bad(self, why):
        self.wrong.append(why)

    def __repr__(self):
        return f"{self.src} -> {self.dst} {self.op or '?'}" + (f" QP {self.dqpn:#x} PSN {self.psn}" if self.op else "")


def _network(link, frame):
    """(IP header, what follows, IPv6) of a frame that has UDP; None of any other."""
    if link == ETHERNET:
        if len(frame) < 14:
            return None
        kind, rest = struct.unpack_from(">H", frame, 12)[0], frame[14:]
    elif link in (RAW, RAW_BSD):
        kind, rest = {4: 0x0800, 6: 0x86DD}.get(frame[0] >> 4 if len(frame) else 0), frame
    else:
        raise Unreadable(f"link type {link}")
    if kind == 0x0800 and len(rest) >= 20 and rest[9] == 17:
        return rest[:4 * (rest[0] & 15)], rest[4 * (rest[0] & 15):], False
    if kind == 0x86DD and len(rest) >= 40 and rest[6] == 17:
        return rest[:40], rest[40:], True
    return None


def _ip(p, ip, v6, rest, ours):
    """Checks the IP header; returns what it says that follows."""
    if v6:
        p.src, p.dst = (str(ipaddress.ip_address(bytes(ip[i:i + 16]))) for i in (8, 24))
        length = struct.unpack_from(">H", ip, 4)[0]
    else:
        p.src, p.dst = (str(ipaddress.ip_address(bytes(ip[i:i + 4]))) for i in (12, 16))
        length = struct.unpack_from(">H", ip, 2)[0] - len(ip)
        flags = struct.unpack_from(">H", ip, 6)[0]
        if ip[0] != 0x45:
            p.bad("IPv4 options")
        if flags & 0x3FFF:
            p.bad("an IPv4 fragment")
        if _sum16(ip) != 0xFFFF:
            p.bad("IPv4's checksum is wrong")
        if p.src in ours and not flags & 0x4000:
            p.bad("IPv4 may fragment it")
    if length > len(rest):
        p.bad(f"IP announces {length} bytes behind its header, the frame has {len(rest)}")
    return rest[:length]


def _transport(p, ib, ours):
    opcode, flags, pkey, word, last = struct.unpack_from(">BBHII", ib)
    p.opcode, p.dqpn, p.psn, p.flags = opcode, word & 0xFFFFFF, last & 0xFFFFFF, flags
    p.pad, p.ack_req = flags >> 4 & 3, bool(last >> 31)
    if opcode == CNP:
        family, (p.op, headers, payload) = "", ("CNP", [], True)
    else:
        family = FAMILIES.get(opcode >> 5)
        p.op, headers, payload = OPERATIONS.get(opcode & 31, (None, [], False))
        if not family or not p.op or family == "UD" and opcode & 31 not in (4, 5):
            p.op = f"opcode {opcode:#x}"
            p.bad("unknown opcode")
            return
        p.op = f"{family} {p.op}"
    if flags & 15:
        p.bad(f"transport version {flags & 15}")
    if pkey & 0x7FFF != 0x7FFF:
        p.bad(f"P_Key {pkey:#06x}")
    if word >> 24 & 0x3F or last >> 24 & 0x7F:
        p.bad("reserved bits of the BTH are not 0")
    answer = "Acknowledge" in p.op or "READ Response" in p.op
    headers = {"UD": ["deth"], "XRC": [] if answer else ["xrceth"]}.get(family, []) + headers
    at = 12
    for h in headers:
        if at + SIZES[h] > len(ib):
            p.bad(f"it ends within its {h.upper()}")
            return
        for name, value in zip(FIELDS[h][1], struct.unpack_from(FIELDS[h][0], ib, at)):
            setattr(p, name, value)
        at += SIZES[h]
    p.payload_len = len(ib) - at - p.pad
    if p.payload_len < 0:
        p.bad(f"{p.pad} bytes of padding, {len(ib) - at} bytes behind the headers")
        return
    p.payload = ib[at:at + p.payload_len]
    if not answer and family in ("RC", "XRC") and "READ" not in p.op:  # the rest of a READ is asked for in other words
        p.request = p.op, p.payload_len, bytes(ib[12:at])
    if any(ib[at + p.payload_len:]):
        p.bad("the padding is not 0")
    if not payload and len(ib) != at:
        p.bad(f"{len(ib) - at} bytes behind the headers of a packet without payload")
    _message(p, ours)


def _message(p, ours):
    """The payload's length by the packet's place in its message, and what headers say of it."""
    n, place = p.payload_len, p.op.split()[-1] if "with" not in p.op else p.op.split(" with")[0].split()[-1]
    if p.opcode == CNP:
        if n != 16 or any(p.payload):
            p.bad("a CNP has 16 bytes of 0 behind its BTH")
        return
    if n > 4096:
        p.bad(f"a payload of {n} bytes (an interface merges packets? Turn off its GRO)")
    if place in ("First", "Middle") and (n not in (256, 512, 1024, 2048, 4096) or p.pad):
        p.bad(f"{place} has {n} bytes and {p.pad} of padding, which is no path MTU")
    if place == "Last" and not n:
        p.bad("Last has no payload")
    if "WRITE First" in p.op and p.dmalen <= n:
        p.bad(f"RETH announces {p.dmalen} bytes, First alone has {n}")
    if "WRITE Only" in p.op and p.dmalen != n or "ATOMIC WRITE" in p.op and (p.dmalen, n) != (8, 8):
        p.bad(f"RETH announces {p.dmalen} bytes, the packet has {n}")
    if hasattr(p, "dmalen") and p.dmalen > 1 << 31:
        p.bad(f"RETH announces {p.dmalen} bytes")
    if hasattr(p, "aeth"):
        s = p.aeth >> 24
        if s & 0x80 or s & 0x60 == 0x40 or s & 0x60 == 0x60 and s not in CODES:
            p.bad(f"AETH has the reserved syndrome {s:#x}")
        if s & 0x60 and "READ Response" in p.op:
            p.bad(f"a READ response with syndrome {s:#x}")
        if p.src in ours and not s & 0x60 and s != 0x1F:
            p.bad(f"AETH limits credits: {s:#x}")
    if p.src in ours and not p.flags & 0x40:
        p.bad("MigReq is 0")


def packet(link, frame, length, ours=()):
    """A frame's Packet; None if it is none of RoCEv2."""
    found = _network(link, frame)
    if not found:
        return None
    ip, rest, v6 = found
    if len(rest) < 8 or struct.unpack_from(">H", rest, 2)[0] != ROCE:
        return None
    p = Packet()
    p.v6 = v6
    if len(frame) < length:
        p.bad(f"the capture has {len(frame)} of its {length} bytes")
    rest = _ip(p, ip, v6, rest, ours)
    if len(rest) < 8:
        p.bad("IP ends within UDP's header")
        return p
    p.sport, _, udp_len, p.udp_sum = struct.unpack_from(">4H", rest)
    if udp_len != len(rest):
        p.bad(f"UDP announces {udp_len} bytes, IP {len(rest)}")
        return p
    if p.src in ours and p.sport < 0xC000:
        p.bad(f"source port {p.sport}")
    ib = rest[8:]
    if len(ib) < 16 or len(ib) % 4:
        p.bad(f"{len(ib)} bytes from the BTH to the ICRC")
        return p
    _transport(p, ib[:-4], ours)
    got, right = struct.unpack_from("<I", ib, len(ib) - 4)[0], icrc(ip, v6, rest[:8], ib[:-4])
    if got != right:
        p.bad(f"ICRC {got:08x}, not {right:08x}")
    return p


# ---- a file ----

class Requests:
    """A PSN stands for one packet, however often that is sent (9.7.3.2.1).  A program may reuse the bytes of a message
    that its peer has, so those are not compared."""

    FAR = 1 << 14  # PSNs further away than this belong to another connection of the same queue pair numbers

    def __init__(self):
        self.streams = {}

    def altered(self, n, p):
        """What the packet was before, in words; None if it is the same, or new."""
        if not p.request:
            return None
        key = p.src, p.sport, p.dst, p.dqpn
        last, seen = self.streams.get(key, (p.psn, {}))
        if not self.FAR < (p.psn - last + 2 * self.FAR & 0xFFFFFF) < 3 * self.FAR:
            seen = {}
        self.streams[key] = p.psn, seen
        first, was = seen.setdefault(p.psn, (n, p.request))
        if was == p.request:
            return None
        return f"{p.payload_len} bytes, but frame {first} has {was[0]} of {was[1]} bytes with this PSN"


class Verdict:
    """altered: packets that are right, but not those which had their PSNs before."""

    def __init__(self):
        self.frames, self.packets, self.wrong, self.altered, self.counts = 0, 0, [], [], collections.Counter()

    def lines(self):
        for source in sorted({s for s, _ in self.counts}):
            ops = ", ".join(f"{n} {op}" for (s, op), n in sorted(self.counts.items()) if s == source)
            yield f"from {source}: {ops}"


def judge(path, ours=(), only=()):
    v, requests = Verdict(), Requests()
    for link, frame, length in frames(path):
        v.frames += 1
        p = packet(link, frame, length, ours)
        if not p or only and p.src not in only:
            continue
        v.packets += 1
        v.counts[p.src, p.op or "?"] += 1
        was = requests.altered(v.frames, p)
        if was and p.src in ours:
            p.bad(was)
        elif was:
            v.altered.append((v.frames, p, was))
        if p.wrong:
            v.wrong.append((v.frames, p, p.wrong))
    return v


def main():
    a = argparse.ArgumentParser(description="Judges the RoCEv2 packets of captures.")
    a.add_argument("--ours", action="append", default=[], metavar="ADDRESS")
    a.add_argument("--only", action="append", default=[], metavar="ADDRESS")
    a.add_argument("files", nargs="+")
    a = a.parse_args()
    wrong = 0
    for path in a.files:
        try:
            v = judge(path, a.ours, a.only)
        except (OSError, Unreadable, struct.error, IndexError) as e:
            print(f"{path}: {e}", file=sys.stderr)
            sys.exit(2)
        for n, p, why in v.wrong[:50]:
            print(f"{path}: frame {n}: {p}: {'; '.join(why)}")
        for n, p, why in v.altered[:50]:
            print(f"{path}: frame {n}: {p}: {why}")
        print(f"{path}: {v.packets} RoCEv2 packets in {v.frames} frames, {len(v.wrong)} wrong")
        for line in v.lines():
            print(f"  {line}")
        wrong += bool(v.wrong or not v.packets)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
