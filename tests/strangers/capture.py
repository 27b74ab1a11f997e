#!/usr/bin/python3
"""verbena run --pcap: what is in the file is what the programs did.

A program of the test's own (tests/tools/talk.c) says what it posts, and each packet of it is looked for, byte by byte,
with and without direct placement; programs of others are followed through their connections.  Files are read by a
decoder of the test's own (wire.py), and by tshark, as far as that knows the packets, which must say the same."""
import ipaddress
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import stranger
import wire

MTU, SIZE, THERE, WORD = 1024, 1 << 17, 4096, 64
DIRECT, LENT = "placed directly", "read directly"


class Wrong(Exception):
    pass


def want(what, got, expected):
    if got != expected:
        raise Wrong(f"{what}: {got!r}, not {expected!r}")


def talk(a, folder, what, *options, status=0):
    """The program's output as (word, {name: value}), its log, and the file."""
    path = os.path.join(folder, "talk.pcapng")
    argv = [os.path.join(a.build, "verbena"), "run", f"--pcap={path}", *options, "--",
            os.path.join(a.build, "tests/helpers/tools-talk"), what]
    r = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL)
    if r.returncode != status:
        raise Wrong(f"{' '.join(argv)} ended with {r.returncode}: {r.stdout}{r.stderr}")
    said = []
    for line in r.stdout.splitlines():
        words = line.split()
        said.append((words[0], {k: int(v) if v.isdigit() else v for k, v in (w.split("=") for w in words[1:])}))
    log = [s for s in map(stranger.sentence, r.stderr.splitlines()) if s]
    return said, log, path


def word(said, name):
    return [values for w, values in said if w == name]


# ---- what tshark says ----

FIELDS = {"frame.len": "length", "ip.src": "src", "ip.dst": "dst", "infiniband.bth.opcode": "opcode",
          "infiniband.bth.psn": "psn", "infiniband.bth.destqp": "dqpn", "infiniband.bth.a": "ack_req",
          "infiniband.bth.se": "solicited", "infiniband.bth.m": "migreq", "infiniband.bth.padcnt": "pad",
          "infiniband.bth.p_key": "pkey", "infiniband.reth.va": "va", "infiniband.reth.r_key": "rkey",
          "infiniband.reth.dmalen": "dmalen", "infiniband.aeth.syndrome": "syndrome", "infiniband.aeth.msn": "msn",
          "infiniband.deth.q_key": "qkey", "infiniband.deth.srcqp": "srcqp", "infiniband.atomiceth.swapdt": "swap",
          "infiniband.atomiceth.cmpdt": "compare", "infiniband.atomicacketh.origremdt": "orig",
          "infiniband.immdt": "imm", "infiniband.invariant.crc": None}
# XRC, FLUSH and ATOMIC WRITE tshark 4.0 does not take apart.
UNKNOWN = {"XRC", "FLUSH", "ATOMIC WRITE"}


def tshark(path, found):
    """Every packet, field by field, and no mark of a malformed one."""
    if not shutil.which("tshark"):
        return False
    names = [*FIELDS, "_ws.malformed", "frame.comment", "_ws.col.Info"]
    # It would guess at the payload, which is none of NFS's.
    argv = ["tshark", "--disable-protocol", "rpcordma", "-r", path, "-T", "fields", "-E", "separator=\t", "-E", "occurrence=f"]
    r = subprocess.run(argv + [w for n in names for w in ("-e", n)], capture_output=True, text=True, timeout=300, check=False)
    lines = r.stdout.splitlines()
    if r.returncode or re.search(r"damaged|cut short|corrupt", r.stderr):
        raise Wrong(f"tshark ended with {r.returncode}: {r.stderr}")
    want("packets that tshark sees", len(lines), len(found))
    for line, p in zip(lines, found):
        v = dict(zip(names, line.split("\t")))
        want(f"{p}: tshark's malformed", v["_ws.malformed"], "")
        want(f"{p}: tshark's comment", v["frame.comment"], p.comment or "")
        if p.note or p.op in UNKNOWN or p.family in UNKNOWN:
            continue
        if p.whole and "alformed" in v["_ws.col.Info"]:
            raise Wrong(f"{p}: tshark says {v['_ws.col.Info']}")
        for field, attribute in FIELDS.items():
            text = v[field]
            if attribute is None:
                expected, text = (p.icrc, int(text, 0)) if p.whole and text else (None, None)
                if expected is not None:
                    expected = int.from_bytes(expected.to_bytes(4, "little"), "big")
            elif not hasattr(p, attribute) or (attribute in ("va", "rkey", "dmalen") and "reth" in field and hasattr(p, "swap")):
                continue
            elif attribute == "opcode":
                expected, text = p.opcode, int(text, 0)
            elif attribute == "imm":
                expected, text = p.imm, int(text, 16)
            elif attribute in ("src", "dst"):
                if ":" in p.src:
                    continue
                expected = getattr(p, attribute)
            else:
                expected, text = int(getattr(p, attribute)), int({"True": "1", "False": "0"}.get(text, text), 0)
            want(f"{p}: tshark's {field}", text, expected)
    return True


# ---- the program of the test's own ----

def pattern():
    return bytearray((i * 7 + i // 251) & 0xFF for i in range(SIZE))


def cut(op, data, last, **fields):
    """The packets of a message, as (operation, payload, fields)."""
    parts = [data[i:i + MTU] for i in range(0, len(data), MTU)] or [b""]
    if len(parts) == 1:
        return [(f"{op} Only{last}", parts[0], fields)]
    first = {k: v for k, v in fields.items() if k != "imm"}
    return ([(f"{op} First", parts[0], first)] + [(f"{op} Middle", p, {}) for p in parts[1:-1]] +
            [(f"{op} Last{last}", parts[-1], {k: v for k, v in fields.items() if k == "imm"})])


def expected_of(said, remote):
    """What each request is on the wire: its packets and its answer."""
    here, before = pattern(), [v["value"] for v in word(said, "before")]
    for n, r in enumerate(word(said, "request")):
        op, size, at = r["op"], r["len"], r["va"]
        to = {"va": at, "rkey": r["rkey"], "dmalen": size}
        if op == "SEND":
            yield cut("SEND", here[{0: 0}.get(n, 5):][:size], ""), [("Acknowledge", b"", {})]
        elif op == "SEND_IMM":
            yield cut("SEND", here[1:][:size], " with Immediate", imm=0x1234567), [("Acknowledge", b"", {})]
        elif op in ("WRITE", "WRITE_IMM"):
            imm = op == "WRITE_IMM"
            data = here[{3000: 2, 2048: 3, 90000: 6}.get(size, 4):][:size]
            remote[THERE:THERE + size] = data
            yield (cut("WRITE", data, " with Immediate" if imm else "", **to, **({"imm": 0x89ABCDEF} if imm else {})),
                   [("Acknowledge", b"", {})])
        elif op == "READ":
            answer = cut("READ Response", bytes(remote[THERE:THERE + size]), "")
            yield [("READ Request", b"", to)], [(o.replace(" Only", " Only"), d, {}) for o, d, _ in answer]
        elif op == "FETCH_ADD":
            yield ([("FetchAdd", b"", {"va": at, "rkey": r["rkey"], "swap": 0x1111111111111111})],
                   [("ATOMIC Acknowledge", b"", {"orig": before[0]})])
        elif op == "CMP_SWAP":
            yield ([("CmpSwap", b"", {"va": at, "rkey": r["rkey"], "compare": 0x2222222222222222,
                                      "swap": 0x3333333333333333})],
                   [("ATOMIC Acknowledge", b"", {"orig": before[1]})])
        elif op == "ATOMIC_WRITE":
            yield [("ATOMIC WRITE", bytes(range(1, 9)), to)], [("READ Response Only", b"", {})]
        elif op == "FLUSH":
            yield [("FLUSH", b"", {**to, "feth": 1})], [("READ Response Only", b"", {})]
        elif op == "REFUSED":
            yield cut("WRITE", here[:size], "", **to), [("Acknowledge", b"", {"syndrome": 0x62})]


def compare(p, op, data, fields, psn, dqpn):
    want("operation", p.op, op)
    want(f"PSN of {p}", p.psn, psn)
    want(f"queue pair of {p}", p.dqpn, dqpn)
    want(f"length of {p}", p.payload_len, len(data))
    if p.payload != bytes(data)[:len(p.payload)]:
        raise Wrong(f"the bytes of {p}")
    for name, value in fields.items():
        want(f"{name} of {p}", getattr(p, name), value)


def without_repeats(found):
    """Without ACKs in the middle of a message, and those that come again: what is acknowledged by a look into the other
    process's memory is acknowledged by a packet later."""
    ends = {p.psn for p in found if p.request and p.op.split()[1:2] != ["First"] and p.op.split()[1:2] != ["Middle"]}
    seen, kept = set(), []
    for p in found:
        if p.op == "Acknowledge" and (p.psn in seen or p.psn not in ends):
            continue
        kept.append(p)
        if p.op == "Acknowledge":
            seen.add(p.psn)
    return kept


def gid(end):
    raw = bytes.fromhex(end["gid"][1:])
    return str(ipaddress.ip_address(raw[12:] if raw[:12] == bytes(10) + b"\xff\xff" else raw))


def exact(a, folder, *options):
    """Each packet of the one that posts, in its order; and of the other one, which sees what comes."""
    said, log, path = talk(a, folder, "rc", *options)
    ends = {e["who"]: e for e in word(said, "end")}
    found = wire.packets(path)
    mine = [p for p in found if p.op and (p.request and p.dqpn == ends["B"]["qpn"] or not p.request and p.dqpn == ends["A"]["qpn"])]
    mine = without_repeats(mine)
    want("two addresses", gid(ends["A"]) != gid(ends["B"]), "--devices=2" in options)
    psn, at, whole = ends["A"]["psn"], 0, "--pcap-snap=0" in options
    for packets, answers in expected_of(said, pattern()):
        first = psn
        for op, data, fields in packets:
            compare(mine[at], op, data, fields, psn, ends["B"]["qpn"])
            want(f"{mine[at]} is whole", mine[at].whole, whole or mine[at].length <= 384)
            want("from where to where", (mine[at].src, mine[at].dst), (gid(ends["A"]), gid(ends["B"])))
            at, psn = at + 1, psn + 1 & 0xFFFFFF
        last = psn - 1 & 0xFFFFFF
        for k, (op, data, fields) in enumerate(answers):
            fields.setdefault("syndrome", 31) if op not in ("READ Response Middle",) else None
            compare(mine[at], op, data, fields, last if op == "Acknowledge" else first + k & 0xFFFFFF, ends["A"]["qpn"])
            want("from where to where", (mine[at].src, mine[at].dst), (gid(ends["B"]), gid(ends["A"])))
            at += 1
        psn = max(psn, first + len(answers), key=lambda x: wire.after(x, first)) & 0xFFFFFF
    want("packets of this connection", len(mine), at)
    other = [p for p in found if p.op and (p.request and p.dqpn == ends["A"]["qpn"] or not p.request and p.dqpn == ends["B"]["qpn"])]
    want("the other direction", [(p.op, p.dqpn, p.psn, p.payload_len) for p in other],
         [("SEND Only", ends["A"]["qpn"], ends["B"]["psn"], 300), ("Acknowledge", ends["B"]["qpn"], ends["B"]["psn"], 0)])
    comments = [p.comment or "" for p in mine]
    direct = "--direct=off" not in options
    want("placed directly", sum(c.startswith(DIRECT) for c in comments) > 100, direct)
    want("lent", sum(c.startswith(LENT) for c in comments), 40 if direct else 0)
    wire.streams(found, MTU)
    # the sentences of the log, at both ends
    notes = [p.comment for p in found if p.note]
    there = wire.packets(f"{path}.{word(said, 'child')[0]['pid']}")
    notes_there = [p.comment for p in there if p.note]
    want("what was said", sorted(notes + notes_there), sorted(log))
    want("sentences at each end", (len(notes), len(notes_there)), (1, 1))
    wire.streams(there, MTU)
    want("what came is what was sent", {(p.op, p.psn) for p in there if p.op and not p.request and p.dqpn == ends["B"]["qpn"]},
         {("Acknowledge", ends["B"]["psn"])})
    if not direct:
        want("both saw the same", *([(p.op, p.dqpn, p.psn, p.payload) for p in all_ if p.op and p.op != "Acknowledge"]
                                    for all_ in (there, found)))
    return tshark(path, found)


def alone(a, folder, what, times, status=0):
    """One process with both ends: each packet is there once; after exec() another section follows, and what a
    process kept that dies by SIGKILL is there to the last packet."""
    said, _, path = talk(a, folder, what, status=status)
    sections = wire.read(path)
    want("sections", len(sections), times)
    for n, (who, found) in enumerate(sections):
        want("who wrote it", who.split(" (")[0], "Verbena, tools-talk" if n == 0 else "Verbena, exe")
        qpn, psn = (word(said, "end")[2 * n + i]["qpn"] for i in (0, 1)), word(said, "end")[2 * n]["psn"]
        one, two = qpn
        want("packets", [(p.op, p.dqpn, wire.after(p.psn, psn)) for p in without_repeats(found)],
             [t for i in range(20) for t in (("SEND First", two, 4 * i), ("SEND Last", two, 4 * i + 1),
                                             ("Acknowledge", one, 4 * i + 1), ("WRITE First", two, 4 * i + 2),
                                             ("WRITE Last", two, 4 * i + 3), ("Acknowledge", one, 4 * i + 3))])
        want("times go up", [p.when for p in found], sorted(p.when for p in found))
        wire.streams(found, MTU)
    return True


def datagrams(a, folder, what):
    said, _, path = talk(a, folder, what, "--pcap-snap=0")
    ends = {e["who"]: e for e in word(said, "end")}
    for file in (path, f"{path}.{word(said, 'child')[0]['pid']}"):
        found = wire.packets(file)
        data = pattern()
        want("datagrams", len(found), 3)
        for i, p in enumerate(found):
            compare(p, "SEND Only", data[:100 + 1000 * i], {"family": "UD", "qkey": 0x1EE7A1, "srcqp": ends["A"]["qpn"]}, i,
                    0xFFFFFF if what == "group" else ends["B"]["qpn"])
            want("from", p.src, gid(ends["A"]))
            want("to", p.dst, "239.1.2.3" if what == "group" else gid(ends["B"]))
            want("Ethernet address", p.frame[:3] == b"\x01\x00\x5e", what == "group")
        tshark(file, found)
    return True


def ring(a, folder):
    """Some files of a size, whatever goes by; and what is kept of a packet is bounded."""
    path = os.path.join(folder, "ring")
    p = stranger.pair(a.build, ["ib_write_bw", "-F", "-n", "200", "-s", "65536", "-m", "1024"], env={
        "VERBENA_PCAP": path, "VERBENA_PCAP_RING": "3:64K", "VERBENA_PCAP_SNAP": "100"})
    if not p.ok:
        raise Wrong(p.why)
    files = sorted(os.listdir(folder))
    most = {}
    for name in files:
        m = re.fullmatch(r"ring\.(\d+)\.([012])", name)
        if not m:
            raise Wrong(f"a file {name}")
        size = os.path.getsize(os.path.join(folder, name))
        if size > 65536:
            raise Wrong(f"{name} has {size} bytes")
        found = wire.packets(os.path.join(folder, name))
        if any(len(f.frame) > 100 for f in found if not f.note):
            raise Wrong("more of a packet was kept than the snap length")
        most[m.group(1)] = max(most.get(m.group(1), 0), len(found))
    want("processes", len(most), 2)
    want("all files of the one that sends", sum(name.startswith(f"ring.{max(most, key=most.get)}.") for name in files), 3)
    return True


def taken(a, folder):
    """A file that a process writes to is not begun anew by another; without the option that one writes another."""
    path = os.path.join(folder, "taken")
    verbena = os.path.join(a.build, "verbena")
    server = subprocess.Popen([verbena, "run", "--pcap", path, "ibv_rc_pingpong", "-g", "0", "-p", str(stranger.free_port())],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    try:
        while not (os.path.exists(path) and os.path.getsize(path)):  # until it has opened the device
            if server.poll() is not None:
                raise Wrong(f"the server ended with {server.returncode}")
            time.sleep(0.005)
        r = subprocess.run([verbena, "run", "--pcap", path, "true"], capture_output=True, text=True, check=False)
        want("status", r.returncode, 125)
        want("the sentence", "is in use by another process" in r.stderr, True)
        r = subprocess.run([verbena, "run", "ibv_devinfo"], env={**os.environ, "VERBENA_PCAP": path}, capture_output=True,
                           text=True, check=False)
        want("status of another process", r.returncode, 0)
        want("files", len([n for n in os.listdir(folder) if n.startswith("taken.")]), 1)
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()
    want("what it kept", len(wire.read(path)), 1)
    r = subprocess.run([verbena, "run", "--pcap", path, "true"], capture_output=True, text=True, check=False)
    want("it begins anew", (r.returncode, os.path.getsize(path)), (0, 0))
    return True


def killed(a, folder):
    """Whenever a process is killed, what it wrote before can be read, and another one may append to it."""
    path = os.path.join(folder, "file")

    def look(*pids):
        for _ in range(50):  # often: what is written meanwhile has all to be read
            if any(os.path.getsize(os.path.join(folder, n)) > 300000 for n in os.listdir(folder)):
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
                return
            time.sleep(0.005)

    stranger.pair(a.build, ["ib_write_bw", "-F", "-D", "30", "-s", "65536", "-m", "1024"], env={"VERBENA_PCAP": path},
                  limit=60, look=look)
    files = [os.path.join(folder, n) for n in sorted(os.listdir(folder))]
    want("files", len(files), 2)
    before = [[len(found) for _, found in wire.read(f, torn=True)] for f in files]
    want("packets", max(b[0] for b in before) > 500, True)
    for f, b in zip(files, before):
        for _, found in wire.read(f, torn=True):
            wire.streams(found, MTU)
        r = stranger.run(a.build, ["ibv_devinfo"], env={"VERBENA_PCAP": f})
        want("status of another process", r.status, 0)
        want("packets with another section", [len(found) for _, found in wire.read(f)], b + [0])
        tshark(f, wire.packets(f))
    return True


# ---- programs of others ----

ADDRESS = re.compile(r"(local|remote) address:.*?QPN 0x([0-9a-f]+), PSN 0x([0-9a-f]+)(?:, GID (\S+))?")
SAID = re.compile(r"(local|remote) address:.*?QPN (0x[0-9a-f]+) PSN (0x[0-9a-f]+)(?:.*?RKey (0x[0-9a-f]+) VAddr (0x[0-9a-f]+))?")


class Row:
    """A program, the path MTU that it uses, and how many requests of which kind each connection's file has."""

    def __init__(self, line, mtu, kind, count, size, both=False):
        words = line.split()
        self.env = dict(w.split("=", 1) for w in words if re.match("[A-Z_]+=", w))
        self.argv = words[len(self.env):]
        self.line, self.mtu, self.kind, self.count, self.size, self.both = line, mtu, kind, count, size, both


ROWS = [Row("ibv_rc_pingpong -g 0 -n 50 -s 5000", 1024, "SEND", 50, 5000, True),
        Row("ibv_rc_pingpong -g 0 -n 5 -s 100000 -m 256", 256, "SEND", 5, 100000, True),
        Row("ibv_uc_pingpong -g 0 -n 50 -s 3000", 1024, "SEND", 50, 3000, True),
        Row("ibv_ud_pingpong -g 0 -n 50 -s 2000", 1024, "SEND", 50, 2000, True),
        Row("VERBENA_LINK=infiniband ibv_rc_pingpong -n 20 -s 5000", 1024, "SEND", 20, 5000, True),  # over IPv6
        Row("VERBENA_LINK=infiniband ibv_ud_pingpong -n 20 -s 1000", 1024, "SEND", 20, 1000, True),
        Row("ibv_xsrq_pingpong -g 0 -n 20 -s 5000", 1024, "SEND", 20, 5000, True),
        Row("ib_write_bw -F -n 20 -s 65536 -m 2048", 2048, "WRITE", 20, 65536),
        Row("ib_write_lat -F -n 100 -s 8 -m 1024", 1024, "WRITE", 100, 8, True),
        Row("ib_read_bw -F -n 20 -s 5000 -m 512", 512, "READ", 20, 5000),
        Row("ib_send_bw -F -n 20 -s 9000 -c XRC -m 1024", 1024, "SEND", 20, 9000),
        Row("ib_atomic_lat -F -n 20 -m 1024", 1024, "FetchAdd", 20, 8),
        Row("ib_atomic_lat -F -n 20 -m 1024 -A CMP_AND_SWAP", 1024, "CmpSwap", 20, 8)]


def sizes_of(row, found):
    """The lengths of all messages of the row's kind to each queue pair."""
    got = {}
    if "_ud_" in row.line:
        for p in found:
            got.setdefault(p.dqpn, []).append(p.payload_len)
        return got
    for (_, dqpn), s in wire.streams(found, row.mtu).items():
        for m in s.ended:
            if m[0].op.split()[0] == row.kind:
                length = m[0].dmalen if row.kind == "READ" else 8 if row.kind in ("FetchAdd", "CmpSwap") else None
                got.setdefault(dqpn, []).append(sum(p.payload_len for p in m) if length is None else length)
    return got


def program(a, folder, row):
    path = os.path.join(folder, "file")
    p = stranger.pair(a.build, row.argv, env={"VERBENA_PCAP": path, "VERBENA_PCAP_SNAP": "0", **row.env})
    if not p.ok:
        raise Wrong(p.why)
    files = sorted(os.listdir(folder))
    want("files", len(files), 2)
    ends = {}
    for r in (p.client, p.server):
        for m in list(ADDRESS.finditer(r.out)) + list(SAID.finditer(r.out)):
            ends[int(m.group(2), 16)] = m.groups()
    for name in files:
        found = wire.packets(os.path.join(folder, name))
        for q in found:
            if q.op and q.dqpn not in ends and q.family != "XRC":
                raise Wrong(f"{q}: no such queue pair, there are {[hex(e) for e in ends]}")
        for qpn, lengths in sizes_of(row, found).items():
            first = next(q for q in found if q.op and q.request and q.dqpn == qpn)
            mine = [e for e, v in ends.items() if int(v[2], 16) == first.psn]
            if first.family in ("RC", "UC") and (not mine or mine[0] == qpn):
                raise Wrong(f"{first} begins with no PSN that was said")
            want(f"messages to {qpn:#x} in {name}", lengths, [row.size] * len(lengths))
        counts = [len(v) for v in sizes_of(row, found).values()]
        # What others place directly is not seen by the one whose memory it is.
        if row.kind == "SEND" or max(counts, default=0) >= row.count:
            want(f"messages in {name}", counts, [row.count] * (2 if row.both and row.kind == "SEND" else 1))
        tshark(os.path.join(folder, name), found)
    best = max(sum(len(v) for v in sizes_of(row, wire.packets(os.path.join(folder, n))).values()) for n in files)
    if best < row.count:
        raise Wrong(f"{best} messages, of {row.count}")
    return True


# ---- the connection manager ----

RDMA_TCP, RDMA_UDP = 0x0106 << 16, 0x0111 << 16  # port spaces
# What tshark 4.0 shows of messages, by its field: of which of them, and what it is here.
CM_FIELDS = {"cm.req": ("REQ", "local"), "cm.req.serviceid": ("REQ", "service"), "cm.req.localqpn": ("REQ", "qpn"),
             "cm.req.startpsn": ("REQ", "start"), "cm.req.responderres": ("REQ", "resources"), "cm.req.initdepth": ("REQ", "depth"),
             "cm.req.transpsvctype": ("REQ", "type"), "cm.req.retrcount": ("REQ", "retries"), "cm.req.pppmtu": ("REQ", "mtu"),
             "cm.req.rnrretrcount": ("REQ", "rnr"), "cm.req.prim_hoplim": ("REQ", "hops"),
             "cm.req.ip_cm.sport": ("REQ", "port"), "cm.req.ip_cm.sip4": ("REQ", "src"), "cm.req.ip_cm.dip4": ("REQ", "dst"),
             "cm.rep": ("REP", "local"), "cm.rep.remotecommid": ("REP", "remote"), "cm.rep.localqpn": ("REP", "qpn"),
             "cm.rep.startpsn": ("REP", "start"), "cm.rep.respres": ("REP", "resources"), "cm.rep.initdepth": ("REP", "depth"),
             "cm.rep.rnrretrcount": ("REP", "rnr"), "cm.rtu.localcommid": ("RTU", "local"),
             "cm.rtu.remotecommid": ("RTU", "remote"), "cm.rej.localcommid": ("REJ", "local"),
             "cm.rej.remotecommid": ("REJ", "remote"), "cm.rej.reason": ("REJ", "reason"), "cm.dreq.localcommid": ("DREQ", "local"),
             "cm.dreq.remotecommid": ("DREQ", "remote"), "cm.drsp.localcommid": ("DREP", "local"),
             "cm.drsp.remotecommid": ("DREP", "remote"), "mad.transactionid": (None, "transaction")}


def tshark_of_mads(path, said):
    """Those of its messages that tshark knows, field by field."""
    if not shutil.which("tshark"):
        return
    argv = ["tshark", "-r", path, "-Y", "infiniband.bth.destqp == 1", "-T", "fields", "-E", "separator=\t", "-E", "occurrence=f"]
    r = subprocess.run(argv + [w for n in CM_FIELDS for w in ("-e", f"infiniband.{n}")], capture_output=True, text=True,
                       timeout=60, check=True)
    lines = r.stdout.splitlines()
    want("messages that tshark sees", len(lines), len(said))
    for line, m in zip(lines, said):
        for (field, (name, attribute)), text in zip(CM_FIELDS.items(), line.split("\t")):
            if name in (None, m.name):
                value = getattr(m, attribute)
                want(f"{m}: tshark's {field}", text if isinstance(value, str) else int(text, 0), value)


def only(said, name):
    """The first of that name; it may have been said again."""
    for m in said:
        if m.name == name:
            return m
    raise Wrong(f"no {name} among {said}")


def rdma_cm(a, folder, server, client):
    """Runs a server and its client by rdma_cm; the file of each, the client's first, and the server's port."""
    path = os.path.join(folder, "file")
    env = {"VERBENA_PCAP": path, "VERBENA_PCAP_SNAP": "0"}
    p = stranger.pair(a.build, server, other=client, port_option=None, host=None, env=env, ready=stranger.rdma_listening)
    if not p.ok:
        raise Wrong(p.why)
    files = [os.path.join(folder, n) for n in sorted(os.listdir(folder))]
    want("files", len(files), 2)
    first = [wire.packets(f) for f in files]
    for f, found in zip(files, first):
        tshark(f, found)
        tshark_of_mads(f, wire.mads(found))
    return first, p


CONNECTIONS = [(["rping", "-s", "-a", "127.0.0.1", "-p", "{port}", "-C", "3"],
                ["rping", "-c", "-a", "127.0.0.1", "-p", "{port}", "-C", "3"]),
               (["ucmatose", "-b", "127.0.0.1", "-p", "{port}"],
                ["ucmatose", "-s", "127.0.0.1", "-b", "127.0.0.1", "-p", "{port}"])]


def connections(a, folder, server, client):
    """What both say before their first packet and behind the last one is what these packets are.  rping's client does
    not wait for the answer to its farewell; what ends before that is there has none in its file."""
    (one, two), p = rdma_cm(a, folder, server, client)
    port = int(p.client.argv[p.client.argv.index("-p") + 1])
    waits = server[0] != "rping"
    for found in (one, two):
        said = wire.mads(found)
        req, rep, rtu, dreq = (only(said, n) for n in ("REQ", "REP", "RTU", "DREQ"))
        drep = only(said, "DREP") if waits or any(m.name == "DREP" for m in said) else None
        want("service ID", req.service, RDMA_TCP | port)
        want("addresses", (req.ip_version, req.src, req.dst), (4, "127.0.0.1", "127.0.0.1"))
        want("GIDs of the path", [str(ipaddress.ip_address((g & 0xFFFFFFFF).to_bytes(4, "big"))) for g in (req.sgid, req.dgid)],
             [req.packet.src, req.packet.dst])
        want("type", req.type, 0)
        want("comm IDs", (rep.remote, rtu.local, rtu.remote), (req.local, req.local, rep.local))
        ids = {req.local, rep.local}
        want("comm IDs at the end", {dreq.local, dreq.remote}, ids)
        want("transactions", rep.transaction, req.transaction)
        if drep:
            want("comm IDs of the answer", ({drep.local, drep.remote}, drep.remote), (ids, dreq.local))
            want("its transaction", drep.transaction, dreq.transaction)
        want("the queue pair that is left", dreq.qpn, rep.qpn if dreq.local == req.local else req.qpn)
        mtu = 128 << req.mtu
        streams = wire.streams(found, mtu)
        for dqpn, start in ((req.qpn, req.start), (rep.qpn, rep.start)):  # that at which the other end is to begin
            mine = [s for (_, q), s in streams.items() if q == dqpn]
            want(f"connections to {dqpn:#x}", len(mine), 1)
            want(f"first PSN to {dqpn:#x}", next(iter(mine[0].requests)), start)
    return True


def nobody_listens(a, folder):
    path = os.path.join(folder, "file")
    port = stranger.free_port()
    r = stranger.run(a.build, ["rping", "-c", "-a", "127.0.0.1", "-p", str(port), "-C", "1"], limit=20,
                     env={"VERBENA_PCAP": path, "VERBENA_PCAP_SNAP": "0"})
    want("rping is refused", r.status in (0, None), False)
    found = wire.packets(path)
    said = wire.mads(found)
    req, rej = only(said, "REQ"), only(said, "REJ")
    want("service ID", req.service, RDMA_TCP | port)
    want("the REJ", (rej.remote, rej.about, rej.reason, rej.transaction), (req.local, 0, 8, req.transaction))
    tshark(path, found)
    tshark_of_mads(path, said)
    return True


def services(a, folder):
    """udaddy: whom to send to is asked for, and its datagrams go there."""
    (one, two), _ = rdma_cm(a, folder, ["udaddy", "-b", "127.0.0.1", "-C", "3"], ["udaddy", "-s", "127.0.0.1", "-b", "127.0.0.1", "-C", "3"])
    for found in (one, two):
        said = wire.mads(found)
        req, rep = only(said, "SIDR_REQ"), only(said, "SIDR_REP")
        want("service ID", (req.service, rep.service), (RDMA_UDP | 7174, RDMA_UDP | 7174))
        want("addresses", (req.ip_version, req.src, req.dst), (4, "127.0.0.1", "127.0.0.1"))
        want("the answer", (rep.request, rep.status, rep.qkey, rep.transaction), (req.request, 0, 0x01234567, req.transaction))
        data = [p for p in found if p.op and p.dqpn != 1]
        want("datagrams go there", {p.dqpn for p in data} >= {rep.qpn}, True)
        want("their Q_Key", {p.qkey for p in data}, {rep.qkey})
    return True


def main():
    a = stranger.arguments()
    helper = os.path.join(a.build, "tests/helpers/tools-talk")
    if not os.path.exists(helper):
        stranger.skip("no tools-talk in this build")
    stranger.need("ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_xsrq_pingpong", "ib_write_bw", "ib_atomic_lat")
    cases = [("each packet", lambda d: exact(a, d, "--pcap-snap=0", "--devices=2")),
             ("each packet, without direct placement", lambda d: exact(a, d, "--pcap-snap=0", "--direct=off")),
             ("each packet, cut", lambda d: exact(a, d)),
             ("one process", lambda d: alone(a, d, "loop", 1)),
             ("exec", lambda d: alone(a, d, "exec", 2)),
             ("killed", lambda d: alone(a, d, "kill", 1, -signal.SIGKILL)),
             ("killed in mid-stream", lambda d: killed(a, d)),
             ("datagrams", lambda d: datagrams(a, d, "ud")),
             ("a group", lambda d: datagrams(a, d, "group")),
             ("a ring of files", lambda d: ring(a, d)),
             ("a file that is taken", lambda d: taken(a, d))]
    if os.path.exists(os.path.join(a.build, "lib/librdmacm.so.1")) and all(map(shutil.which, ("rping", "ucmatose", "udaddy"))):
        cases += [("connections: " + server[0], lambda d, ends=(server, client): connections(a, d, *ends)) for server, client in CONNECTIONS]
        cases += [("nobody listens", lambda d: nobody_listens(a, d)),
                  ("services", lambda d: services(a, d))]
    # tshark takes a second to start: each transport and operation once, and all rows in a soak
    rows = ROWS if os.environ.get("VERBENA_SOAK") or a.rows else [ROWS[i] for i in (1, 2, 3, 4, 9, 11)]
    cases += [(row.line, lambda d, row=row: program(a, d, row)) for row in rows]
    failed = done = 0
    for name, run in cases:
        if a.rows and not any(w in name for w in a.rows):
            continue
        done += 1
        with tempfile.TemporaryDirectory(prefix="capture-") as folder:
            try:
                run(folder)
                print(f"ok      {name}", flush=True)
            except (Wrong, wire.Broken, StopIteration) as e:
                failed += 1
                print(f"FAILED  {name}: {e}", flush=True)
                if a.stop:
                    sys.exit(1)
    print(f"{done - failed} passed, {failed} failed")
    if failed or not done:
        sys.exit(1)
    if not shutil.which("tshark"):
        stranger.skip("tshark is not installed (scripts/deps test): the captures were read by the test's own decoder only")


if __name__ == "__main__":
    main()
