"""Reads a capture: blocks of pcapng, and packets of RoCEv2 down to their ICRC.  It knows nothing of the code that
writes them: formats are those of the pcapng draft, and of the InfiniBand specification (volume 1, 9.2 to 9.5; annexes
A14: XRC, A17: RoCEv2, A19: FLUSH and ATOMIC WRITE)."""
import ipaddress
import struct
import zlib

SECTION, INTERFACE, PACKET = 0x0A0D0D0A, 1, 6
NOTE = 0x88B5  # the type of a frame that only carries a comment
ROCE = 4791

FAMILIES = {0: "RC", 1: "UC", 3: "UD", 5: "XRC"}
# Operations: the headers behind the BTH, in their order, and whether payload follows.
R, A, I = ["reth"], ["aeth"], ["imm"]
OPERATIONS = {
    0: ("SEND First", [], True), 1: ("SEND Middle", [], True), 2: ("SEND Last", [], True),
    3: ("SEND Last with Immediate", I, True), 4: ("SEND Only", [], True), 5: ("SEND Only with Immediate", I, True),
    6: ("WRITE First", R, True), 7: ("WRITE Middle", [], True), 8: ("WRITE Last", [], True),
    9: ("WRITE Last with Immediate", I, True), 10: ("WRITE Only", R, True), 11: ("WRITE Only with Immediate", R + I, True),
    12: ("READ Request", R, False), 13: ("READ Response First", A, True), 14: ("READ Response Middle", [], True),
    15: ("READ Response Last", A, True), 16: ("READ Response Only", A, True), 17: ("Acknowledge", A, False),
    18: ("ATOMIC Acknowledge", A + ["orig"], False), 19: ("CmpSwap", ["atomic"], False),
    20: ("FetchAdd", ["atomic"], False), 22: ("SEND Last with Invalidate", ["inv"], True),
    23: ("SEND Only with Invalidate", ["inv"], True), 28: ("FLUSH", ["feth", "reth"], False),
    29: ("ATOMIC WRITE", R, True),
}
FIELDS = {"deth": (">II", ("qkey", "srcqp")), "xrceth": (">I", ("srqn",)), "feth": (">I", ("feth",)),
          "reth": (">QII", ("va", "rkey", "dmalen")), "aeth": (">I", ("aeth",)),
          "atomic": (">QIQQ", ("va", "rkey", "swap", "compare")), "orig": (">Q", ("orig",)),
          "imm": (">I", ("imm",)), "inv": (">I", ("inv",))}


class Broken(Exception):
    pass


def blocks(data, torn):
    """(type, body) of each block; every length stands at both ends, and the file ends with a block, or half of one."""
    at = 0
    while at < len(data):
        if torn and (len(data) - at < 12 or struct.unpack_from("<I", data, at + 4)[0] > len(data) - at):
            return
        if len(data) - at < 12:
            raise Broken(f"{len(data) - at} bytes behind the last block")
        kind, length = struct.unpack_from("<II", data, at)
        if length < 12 or length % 4 or at + length > len(data):
            raise Broken(f"a block of type {kind:#x} at {at} with length {length}")
        if struct.unpack_from("<I", data, at + length - 4)[0] != length:
            raise Broken(f"the block at {at} has two lengths")
        yield kind, data[at + 8:at + length - 4]
        at += length


def options(data):
    at = 0
    while at + 4 <= len(data):
        code, length = struct.unpack_from("<HH", data, at)
        if code == 0:
            return
        yield code, data[at + 4:at + 4 + length]
        at += 4 + length + (-length & 3)


class Packet:
    """One frame.  Of RoCEv2: family, op (its name), psn, dqpn and the fields of its headers; else op is None."""

    def __init__(self, when, frame, length, comment):
        self.when, self.frame, self.length, self.comment = when, frame, length, comment
        self.whole = len(frame) == length
        self.op = None
        self.note = struct.unpack_from(">H", frame, 12)[0] == NOTE
        if not self.note:
            self._ip()

    def __repr__(self):
        return f"{self.family} {self.op} to {self.dqpn:#x} PSN {self.psn}" if self.op else f"note {self.comment}"

    def _ip(self):
        kind = struct.unpack_from(">H", self.frame, 12)[0]
        f = self.frame[14:]
        if kind == 0x0800:
            if f[0] != 0x45 or f[9] != 17:
                raise Broken("an IPv4 header with options, or no UDP")
            words = struct.unpack(">10H", f[:20])
            total = sum(words)
            total = (total & 0xFFFF) + (total >> 16)
            if (total & 0xFFFF) + (total >> 16) != 0xFFFF:
                raise Broken("IPv4's checksum is wrong")
            self.src, self.dst = (str(ipaddress.ip_address(f[i:i + 4])) for i in (12, 16))
            self.tclass, self.flow, ip_len, rest = f[1], 0, 20, words[1] - 20
        elif kind == 0x86DD:
            if f[0] >> 4 != 6 or f[6] != 17:
                raise Broken("no IPv6 header, or no UDP")
            word = struct.unpack_from(">I", f)[0]
            self.src, self.dst = (str(ipaddress.ip_address(f[i:i + 16])) for i in (8, 24))
            self.tclass, self.flow, ip_len, rest = word >> 20 & 0xFF, word & 0xFFFFF, 40, struct.unpack_from(">H", f, 4)[0]
        else:
            raise Broken(f"a frame of type {kind:#x}")
        if 14 + ip_len + rest != self.length:
            raise Broken(f"IP says {14 + ip_len + rest} bytes, the capture {self.length}")
        self.sport, dport, udp_len, self.udp_sum = struct.unpack_from(">4H", f, ip_len)
        if dport != ROCE or udp_len != rest or self.sport < 0xC000:
            raise Broken("UDP's ports or length")
        self._transport(f, ip_len, rest)

    def _transport(self, f, ip_len, rest):
        at = ip_len + 8
        opcode, flags, self.pkey, word, last = struct.unpack_from(">BBHII", f, at)
        self.opcode, self.family = opcode, FAMILIES.get(opcode >> 5)
        name, headers, payload = OPERATIONS.get(opcode & 31, (None, [], False))
        if not self.family or not name:
            raise Broken(f"opcode {opcode:#x}")
        self.op, self.pad, self.solicited = name, flags >> 4 & 3, bool(flags & 0x80)
        self.migreq, self.dqpn = bool(flags & 0x40), word & 0xFFFFFF
        self.ack_req, self.psn = bool(last >> 31), last & 0xFFFFFF
        at += 12
        request = name not in ("Acknowledge", "ATOMIC Acknowledge") and not name.startswith("READ Response")
        headers = (["deth"] if self.family == "UD" else ["xrceth"] if self.family == "XRC" and request else []) + headers
        for h in headers:
            form, names = FIELDS[h]
            for n, v in zip(names, struct.unpack_from(form, f, at)):
                setattr(self, n, v)
            at += struct.calcsize(form)
        if "aeth" in headers:
            self.syndrome, self.msn = self.aeth >> 24, self.aeth & 0xFFFFFF
        self.request = request
        self.payload_len = ip_len + rest - at - 4 - self.pad
        if self.payload_len < 0 or (self.payload_len and not payload) or (self.payload_len + self.pad) % 4:
            raise Broken(f"{self}: a payload of {self.payload_len} bytes")
        self.payload = f[at:at + self.payload_len]
        if self.whole:
            self._icrc(f, ip_len, ip_len + rest - 4)

    def _icrc(self, f, ip_len, end):
        """Over the packet with ones for what may change on the way, behind eight bytes of ones (A17.3.3)."""
        b = bytearray(f[:end])
        for i in (1, 8, 10, 11) if ip_len == 20 else (1, 2, 3, 7):
            b[i] = 0xFF
        if ip_len == 40:
            b[0] |= 0x0F
        b[ip_len + 6] = b[ip_len + 7] = b[ip_len + 8 + 4] = 0xFF
        self.icrc = struct.unpack_from("<I", f, end)[0]
        if zlib.crc32(b"\xff" * 8 + bytes(b)) != self.icrc:
            raise Broken(f"{self}: the ICRC is wrong")
        if ip_len == 40:
            words = f[8:40] + struct.pack(">II", end + 4 - 40, 17) + f[40:end + 4]
            words += bytes(len(words) & 1)
            total = sum(struct.unpack(f">{len(words) // 2}H", words))
            while total >> 16:
                total = (total & 0xFFFF) + (total >> 16)
            if total != 0xFFFF or not self.udp_sum:
                raise Broken(f"{self}: UDP's checksum is wrong")


def read(path, torn=False):
    """The sections of a file: (who wrote it, its packets) of each.  torn: its writer may have been killed in write()."""
    with open(path, "rb") as f:
        data = f.read()
    sections = []
    for kind, body in blocks(data, torn):
        if kind == SECTION:
            magic, major = struct.unpack_from("<IH", body)
            if magic != 0x1A2B3C4D or major != 1:
                raise Broken("no section of pcapng 1")
            who = dict(options(body[16:])).get(4, b"").decode()
            sections.append((who, []))
        elif kind == INTERFACE:
            if struct.unpack_from("<H", body)[0] != 1 or dict(options(body[8:])).get(9) != b"\x09":
                raise Broken("no Ethernet, or times not in nanoseconds")
        elif kind == PACKET:
            _, high, low, kept, length = struct.unpack_from("<5I", body)
            said = dict(options(body[20 + kept + (-kept & 3):])).get(1)
            sections[-1][1].append(Packet(high << 32 | low, body[20:20 + kept], length, said.decode() if said else None))
        else:
            raise Broken(f"a block of type {kind:#x}")
    return sections


def packets(path):
    return [p for _, section in read(path) for p in section]


def after(a, b):
    """How far PSN a is behind b, negative: before it."""
    return ((a - b + 0x800000) & 0xFFFFFF) - 0x800000


class Stream:
    """The requests to one queue pair, in order, each packet with the PSN that follows from those before it; and the
    answers to them."""

    def __init__(self, mtu):
        self.mtu, self.next, self.requests, self.repeats, self.ended = mtu, None, {}, 0, []
        self.message = None  # the packets of the one that has begun
        self.reads = {}  # first PSN of those that are not answered whole: [bytes, bytes that came]

    def request(self, p):
        if self.next is None:
            self.next = p.psn
        if p.psn in self.requests and after(p.psn, self.next) < 0:
            self.repeats += 1
            if self.requests[p.psn].opcode != p.opcode and "READ" not in p.op:
                raise Broken(f"{p} goes again as another operation than {self.requests[p.psn]}")
            return
        if p.psn != self.next:
            raise Broken(f"{p} where PSN {self.next} is next")
        self.requests[p.psn] = p
        place = p.op.split()[1] if p.op.startswith(("SEND", "WRITE")) else "Only"
        if (self.message is None) != (place in ("First", "Only")):
            raise Broken(f"{p} out of place")
        if place in ("First", "Middle") and p.payload_len != self.mtu or p.payload_len > self.mtu:
            raise Broken(f"{p} with {p.payload_len} bytes")
        self.message = (self.message or []) + [p]
        span = 1
        if p.op == "READ Request":
            span = max(1, -(-p.dmalen // self.mtu))
            self.reads[p.psn] = [p.dmalen, 0]
        self.next = p.psn + span & 0xFFFFFF
        if place in ("Last", "Only"):
            self._end()

    def _end(self):
        first, length = self.message[0], sum(p.payload_len for p in self.message)
        if first.op.startswith("WRITE") and first.dmalen != length:
            raise Broken(f"{first} announces {first.dmalen} bytes, {length} come")
        if first.op.startswith("SEND") and len(self.message) > 1 and not self.message[-1].payload_len:
            raise Broken(f"{first}: its last packet is empty")
        self.ended.append(self.message)
        self.message = None

    def answer(self, p):
        """Of what was asked; the MSN counts the messages that are complete by it."""
        if self.next is None or after(p.psn, self.next) >= 0:
            raise Broken(f"{p} answers nothing")
        if p.op.startswith("READ Response") and self.requests.get(self._first(p)).op == "READ Request":
            state = self.reads.get(self._first(p))
            k = after(p.psn, self._first(p))
            if state and k * self.mtu == state[1]:
                state[1] += p.payload_len
                place = p.op.split()[2]
                if place in ("First", "Middle") and p.payload_len != self.mtu:
                    raise Broken(f"{p} with {p.payload_len} bytes")
                if (place in ("Last", "Only")) != (state[1] == state[0]):
                    raise Broken(f"{p} ends, or does not, after {state[1]} of {state[0]} bytes")
        if p.op == "Acknowledge" and not p.syndrome & 0x60:
            done = sum(after(self._last(m), p.psn) <= 0 for m in self.ended)
            if p.msn != done:
                raise Broken(f"{p} with MSN {p.msn}, {done} messages are complete")

    def _first(self, p):
        """The request that this PSN is of."""
        return max((q for q in self.requests if after(q, p.psn) <= 0), key=lambda q: after(q, p.psn))

    def _last(self, message):
        p = message[-1]
        return p.psn + (max(1, -(-p.dmalen // self.mtu)) - 1 if p.op == "READ Request" else 0) & 0xFFFFFF


def streams(found, mtu):
    """Follows all connections in a file: {(UDP port, dqpn): Stream}; the port is the same both ways."""
    all_, ends = {}, {}
    for p in found:
        if p.op and p.family != "UD":
            ends.setdefault(p.sport, set()).add(p.dqpn)
    for p in found:
        if not p.op or p.family == "UD":
            continue
        if p.request:
            all_.setdefault((p.sport, p.dqpn), Stream(mtu)).request(p)
        else:
            others = ends[p.sport] - {p.dqpn} or {p.dqpn}
            all_.setdefault((p.sport, others.pop()), Stream(mtu)).answer(p)
    return all_


# ---- management datagrams of the connection manager (volume 1, 12.6; annex A11) ----

def _bits(data, at, size, high=0, count=None):
    """A field of `size` bytes; of it `count` bits below the uppermost `high`."""
    v = int.from_bytes(data[at:at + size], "big")
    return v if count is None else v >> (8 * size - high - count) & ((1 << count) - 1)


# By attribute: name, where private data begins, and fields as (name, *_bits()).
MESSAGES = {
    0x10: ("REQ", 140, [("local", 0, 4), ("service", 8, 8), ("qpn", 32, 3), ("resources", 35, 1), ("depth", 39, 1),
                        ("type", 43, 1, 5, 2), ("start", 44, 3), ("retries", 47, 1, 5, 3), ("pkey", 48, 2), ("mtu", 50, 1, 0, 4),
                        ("rnr", 50, 1, 5, 3), ("ext", 51, 1, 5, 3), ("sgid", 56, 16), ("dgid", 72, 16), ("hops", 93, 1)]),
    0x11: ("MRA", 10, [("local", 0, 4), ("remote", 4, 4), ("about", 8, 1, 0, 2), ("timeout", 9, 1, 0, 5)]),
    0x12: ("REJ", 84, [("local", 0, 4), ("remote", 4, 4), ("about", 8, 1, 0, 2), ("reason", 10, 2)]),
    0x13: ("REP", 36, [("local", 0, 4), ("remote", 4, 4), ("qpn", 12, 3), ("start", 20, 3), ("resources", 24, 1),
                       ("depth", 25, 1), ("rnr", 27, 1, 0, 3)]),
    0x14: ("RTU", 8, [("local", 0, 4), ("remote", 4, 4)]),
    0x15: ("DREQ", 12, [("local", 0, 4), ("remote", 4, 4), ("qpn", 8, 3)]),
    0x16: ("DREP", 8, [("local", 0, 4), ("remote", 4, 4)]),
    0x17: ("SIDR_REQ", 16, [("request", 0, 4), ("pkey", 4, 2), ("service", 8, 8)]),
    0x18: ("SIDR_REP", 96, [("request", 0, 4), ("status", 4, 1), ("qpn", 8, 3), ("service", 12, 8), ("qkey", 20, 4)]),
}


class Mad:
    """What a datagram to QP1 says, if it is whole."""

    def __init__(self, p):
        d = p.payload
        if len(d) != 256 or (d[0], d[1], d[2], d[3]) != (1, 7, 2, 3) or p.qkey != 0x80010000 or p.srcqp != 1:
            raise Broken(f"{p}: no message of a connection manager")
        self.packet, self.transaction = p, _bits(d, 8, 8)
        attribute, data = _bits(d, 16, 2), d[24:]
        if attribute not in MESSAGES:
            raise Broken(f"{p}: attribute {attribute:#x}")
        self.name, private, fields = MESSAGES[attribute]
        for name, *where in fields:
            setattr(self, name, _bits(data, *where))
        self.private = data[private:]
        if self.name in ("REQ", "SIDR_REQ") and self.service >> 16:
            self.ip_version, self.port = self.private[1] >> 4, _bits(self.private, 2, 2)
            size = 4 if self.ip_version == 4 else 16
            self.src, self.dst = (str(ipaddress.ip_address(self.private[i - size:i])) for i in (20, 36))
            self.private = self.private[36:]

    def __repr__(self):
        return f"{self.name} from {self.packet.src}"


def mads(found):
    return [Mad(p) for p in found if p.op and p.family == "UD" and p.dqpn == 1]
