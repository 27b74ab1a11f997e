#!/usr/bin/python3
"""The judge of captures (frames.py) accepts what soft-RoCE sends, and notices whatever is changed in it.

golden/rxe.pcap was captured between two of soft-RoCE's devices (Linux 6.1): all operations of RC that it has, with pads,
of several path MTUs."""
import os
import struct
import sys
import tempfile

import frames

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden", "rxe.pcap")
ETH, IP, UDP, BTH = 0, 14, 34, 42
# What no ICRC covers, and nothing else says: MACs, the low bits of ToS, UDP's checksum, FECN and BECN.
FREE = {*range(12), IP + 1, UDP + 6, UDP + 7}
failed = 0


def check(what, ok):
    global failed
    failed += not ok
    if not ok:
        print(f"FAILED: {what}")


def wrong(frame, ours=(), length=None):
    """Whether the judge refuses it, or no longer takes it for RoCEv2."""
    p = frames.packet(frames.ETHERNET, memoryview(bytes(frame)), length or len(frame), ours)
    return p is None or p.wrong


def sealed(frame):
    """With lengths, IPv4's checksum and an ICRC that fit: only what is inside may be wrong."""
    f = bytearray(frame)
    struct.pack_into(">H", f, IP + 2, len(f) - IP)
    struct.pack_into(">H", f, UDP + 4, len(f) - UDP)
    struct.pack_into(">H", f, IP + 10, 0)
    struct.pack_into(">H", f, IP + 10, 0xFFFF - frames._sum16(f[IP:UDP]))
    struct.pack_into("<I", f, len(f) - 4, frames.icrc(f[IP:UDP], False, f[UDP:BTH], bytes(f[BTH:-4])))
    return f


def changed(frame, at, value):
    f = bytearray(frame)
    f[at] = value
    return sealed(f)


def with_udp6(frame):
    """The same packet between IPv6 addresses."""
    head = struct.pack(">IHBB", 0x6 << 28, len(frame) - UDP, 17, 64) + bytes(range(32))
    f = bytearray(frame[:12] + b"\x86\xdd" + head + frame[UDP:])
    struct.pack_into("<I", f, len(f) - 4, frames.icrc(f[14:54], True, f[54:62], bytes(f[62:-4])))
    return f


def every_bit(golden):
    for i, f in enumerate(golden):
        check(f"frame {i} is right", not wrong(f))
        check(f"frame {i} is right when sealed again", sealed(f) == bytearray(f))
        for at in range(len(f)):
            if at in FREE:
                continue
            for bit in (0, 3, 7) if at > BTH + 60 else range(8):
                g = bytearray(f)
                g[at] ^= 1 << bit
                if at == BTH + 4 and bit >= 6:
                    check(f"frame {i}: FECN and BECN may change on the way", not wrong(g))
                else:
                    check(f"frame {i}, byte {at}, bit {bit}", wrong(g))
        for cut in 1, 4, len(f) // 2:
            check(f"frame {i} without {cut} bytes", wrong(f[:-cut]))
            check(f"frame {i} of which the capture lacks {cut} bytes", wrong(f[:-cut], length=len(f)))


def inside(by):
    """What is wrong though the ICRC is right."""
    send, read, ack, write = by["RC SEND Only"], by["RC READ Request"], by["RC Acknowledge"], by["RC WRITE Only"]
    first, last, atomic = by["RC SEND First"], by["RC SEND Last"], by["RC ATOMIC Acknowledge"]
    flags = send[BTH + 1]
    for what, f in {
            "an unknown opcode": changed(send, BTH, 0x15), "RD": changed(send, BTH, 0x44), "UD's WRITE": changed(send, BTH, 0x6A),
            "transport version 1": changed(send, BTH + 1, flags | 1), "a P_Key": changed(send, BTH + 3, 0xFE),
            "reserved bits by the QPN": changed(send, BTH + 4, 1), "reserved bits by the PSN": changed(send, BTH + 8, 1),
            "three bytes of padding more": changed(ack, BTH + 1, ack[BTH + 1] | 0x30),
            "padding that is not 0": changed(send, len(send) - 5, 1),
            "a payload in an ACK": sealed(ack + b"\0\0\0\0"), "a payload in a READ request": sealed(read + b"\0\0\0\0"),
            "a payload in an ATOMIC Acknowledge": sealed(atomic + b"\0\0\0\0"),
            "headers that are cut": sealed(read[:-8]), "a BTH alone without ICRC": sealed(send[:BTH + 12]),
            "a First that is short": sealed(first[:-4]), "an empty Last": sealed(last[:BTH + 16]),
            "a RETH of another length": changed(write, BTH + 27, write[BTH + 27] + 1),
            "a NAK of Verbena's own between processes": changed(ack, BTH + 12, 0x7F),
            "a reserved syndrome": changed(ack, BTH + 12, 0x40), "the reserved bit of a syndrome": changed(ack, BTH + 12, 0x9F),
            "a fragment": changed(send, IP + 6, 0x20), "IPv4 options": changed(send, IP, 0x46),
            "a CNP with bytes in it": sealed(send[:BTH] + b"\x81\0\xff\xff" + bytes(8) + b"\1" + bytes(19))}.items():
        check(what, wrong(f))
    check("a CNP", not wrong(sealed(send[:BTH] + b"\x81\0\xff\xff" + bytes(8 + 20))))
    check("an ECN mark", not wrong(changed(send, IP + 1, 3)))
    src = ".".join(map(str, send[IP + 12:IP + 16]))
    check("MigReq 0 of Verbena's", wrong(send, [src]))
    check("MigReq 1 of Verbena's", not wrong(changed(send, BTH + 1, flags | 0x40), [src]))
    check("no DF of Verbena's", wrong(changed(changed(send, BTH + 1, flags | 0x40), IP + 6, 0), [src]))
    ack = changed(ack, BTH + 1, ack[BTH + 1] | 0x40)
    src = ".".join(map(str, ack[IP + 12:IP + 16]))
    check("no limit of credits of Verbena's", not wrong(ack, [src]))
    check("a limit of credits of Verbena's", wrong(changed(ack, BTH + 12, 7), [src]) and not wrong(changed(ack, BTH + 12, 7)))


def of_ipv6(f):
    g = with_udp6(f)
    check("IPv6", not wrong(g))
    for at in 13 + 2, 13 + 3, 21:  # traffic class, flow label, hop limit
        h = bytearray(g)
        h[at] ^= 0x0F
        check(f"IPv6, byte {at} may change on the way", not wrong(h))
    for at in 14 + 8, 14 + 39, 54, 62 + 11, len(g) - 1:
        h = bytearray(g)
        h[at] ^= 1
        check(f"IPv6, byte {at}", wrong(h))


def judged(golden, cut=0, ours=()):
    """The verdict on a pcapng file of these frames, without its last bytes."""
    block = lambda kind, body: struct.pack("<II", kind, len(body) + 12) + body + struct.pack("<I", len(body) + 12)
    data = block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)) + block(1, struct.pack("<HHI", 1, 0, 0))
    for f in golden:
        data += block(6, struct.pack("<5I", 0, 0, 0, len(f), len(f)) + bytes(f) + bytes(-len(f) & 3))
    with tempfile.NamedTemporaryFile() as t:
        t.write(data[:len(data) - cut])
        t.flush()
        return frames.judge(t.name, ours)


def files(golden):
    """pcapng, and a file whose writer was ended."""
    for cut, packets in (0, len(golden)), (7, len(golden) - 1):
        v = judged(golden, cut)
        check(f"pcapng without {cut} bytes: {v.packets} packets, {len(v.wrong)} wrong", v.packets == packets and not v.wrong)


def again(by):
    """A PSN that comes again with another packet."""
    def at(psn, frame):
        f = bytearray(frame)
        struct.pack_into(">I", f, BTH + 8, struct.unpack_from(">I", f, BTH + 8)[0] & 0x80000000 | psn)
        f[BTH + 1] |= 0x40  # as Verbena's packets have it
        f[UDP:UDP + 2], f[BTH + 4:BTH + 8] = b"\xc0\x01", bytes(4)  # all of one connection
        return sealed(f)

    first, last, write, read = (by["RC " + op] for op in ("SEND First", "SEND Last", "WRITE Only", "READ Request"))
    short = changed(read, BTH + 27, read[BTH + 27] - 1)
    asked = bytearray(at(9, first))
    asked[BTH + 8] ^= 0x80
    payload = changed(first, len(first) - 5, first[-5] ^ 1)
    src = ".".join(map(str, first[IP + 12:IP + 16]))
    for what, altered, fs in (
            ("other PSNs", 0, [at(9, first), at(10, last)]), ("the same packet", 0, [at(9, first), at(10, last), at(9, first)]),
            ("the same with AckReq", 0, [at(9, first), sealed(asked)]), ("the same with other bytes", 0, [at(9, first), at(9, payload)]),
            ("the rest of a READ", 0, [at(9, read), at(9, short)]), ("another connection", 0, [at(9, first), at(9 + (1 << 15), first), at(9, last)]),
            ("another opcode", 1, [at(9, first), at(10, last), at(9, last)]), ("a wrap", 1, [at(0xFFFFFF, first), at(0, last), at(0xFFFFFF, write)]),
            ("another address", 1, [at(9, write), at(9, changed(write, BTH + 19, write[BTH + 19] ^ 8))])):
        v = judged(fs)
        check(f"{what}: {len(v.altered)} altered, {len(v.wrong)} wrong", len(v.altered) == altered and not v.wrong)
        check(f"{what}, of Verbena's", len(judged(fs, ours=[src]).wrong) == altered)


def main():
    golden = [bytes(f) for _, f, _ in frames.frames(GOLDEN)]
    v = frames.judge(GOLDEN)
    check(f"{v.packets} packets, {len(v.wrong)} wrong", v.packets == len(golden) > 40 and not v.wrong)
    by = {}
    for f in golden:
        by.setdefault(frames.packet(frames.ETHERNET, memoryview(f), len(f)).op, f)
    every_bit(golden)
    inside(by)
    of_ipv6(by["RC SEND Only"])
    files(golden)
    again(by)
    print(f"{len(golden)} frames of {len(by)} operations; {failed} checks failed")
    sys.exit(1 if failed else 0)


main()
