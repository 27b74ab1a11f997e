#!/usr/bin/python3
"""Verbena and the kernel's soft-RoCE (rxe) talk to each other.

    rxe.py [--build DIR] [--sides mixed|rxe|verbena]... [--mtu N]... [--family 4|6]... [--loss PERCENT]... [--quick] [CASE...]

It needs a kernel with rdma_rxe and root there.  VERBENA_GUEST says where that is:

    VERBENA_GUEST=PROGRAM   `PROGRAM -t SECONDS -- COMMAND...` runs a command as root of a virtual machine that has this
                            machine's file system; the folder that SHARE names in its environment is /share there
    VERBENA_GUEST=here      this machine

One end of a veth pair is in the first network namespace, where rxe's devices live, and has one.  The other end is in
a namespace of its own, with `verbena run --netdev`.  Every case runs in both roles.  Both ends are captured; frames.py and
tshark judge the captures on this machine.  --sides rxe and --sides verbena have the same implementation at both ends.

A line for each case says how it ended and its figures.  CASE is a part of such a line's name."""
import argparse
import contextlib
import ipaddress
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, "..", "strangers"))
import frames
import offload
from stranger import await_listening, rdma_listening, skip

A, B = ("10.88.0.1", "fd88::1"), ("10.88.0.2", "fd88::2")
ENDS = ("vbi0", "vbi1")  # the interfaces
PEER, HOME = "vbi-peer", "vbi-home"  # the namespaces
COUNTERS = ("duplicate_request", "out_of_seq_request", "rcvd_rnr_err", "send_rnr_err", "rcvd_seq_err", "ack_deferred",
            "retry_exceeded_err", "retry_rnr_exceeded_err", "completer_retry_err", "send_err")


# ---- cases ----

def pingpong(tool, *options):
    return lambda mtu: [tool, *options, "-m", "4096" if mtu >= 4200 else "1024"]


def perf(tool, *options):
    return lambda mtu: [tool, *options, "-F"]


def check(*options):
    return lambda mtu: ["/usr/bin/python3", os.path.join(HERE, "bytes.py"), *options]


def cm(program, *options, own="-b", far="-s", server=(), client=()):
    """A program that connects by rdma_cm."""
    return {"server": [program, *options, *server, own], "client": [program, *options, *client, far]}


# Captured. A SEND of 65,535 bytes has a pad, and is of many packets.
CASES = {
    "bytes": check("-n", "40"),
    "rc_pingpong": pingpong("ibv_rc_pingpong", "-n", "100", "-c"),
    "rc_pingpong events": pingpong("ibv_rc_pingpong", "-n", "50", "-e", "-s", "65536", "-c"),
    "srq_pingpong": pingpong("ibv_srq_pingpong", "-n", "100", "-q", "4"),
    "send_bw": perf("ib_send_bw", "-s", "65535", "-n", "20"),
    "send_lat": perf("ib_send_lat", "-s", "1", "-n", "50"),
    "write_bw": perf("ib_write_bw", "-s", "65535", "-n", "20"),
    "write_lat": perf("ib_write_lat", "-s", "3", "-n", "50"),
    "read_bw": perf("ib_read_bw", "-s", "65535", "-n", "20", "-o", "4"),
    "read_lat": perf("ib_read_lat", "-s", "2", "-n", "50"),
    "read_bw deep": perf("ib_read_bw", "-s", "8191", "-n", "50", "-o", "16"),
    "atomic_bw": perf("ib_atomic_bw", "-n", "200"),
    "atomic_lat": perf("ib_atomic_lat", "-n", "100"),
    "atomic_bw CmpSwap": perf("ib_atomic_bw", "-n", "100", "-A", "CMP_AND_SWAP"),
    "send_bw both ways": perf("ib_send_bw", "-b", "-s", "65536", "-n", "50"),
    "send_bw 4 queue pairs": perf("ib_send_bw", "-q", "4", "-s", "8192", "-n", "100"),
    "write_bw small": perf("ib_write_bw", "-s", "2", "-n", "1000"),
    # Few, since a datagram for which the receiving socket has no room is lost, and these programs wait for all.
    "uc_pingpong": pingpong("ibv_uc_pingpong", "-n", "100"),
    "ud_pingpong": lambda mtu: ["ibv_ud_pingpong", "-n", "100", "-s", "1001"],
    "send_bw UC": perf("ib_send_bw", "-c", "UC", "-s", "8191", "-n", "20"),
    "send_lat UC": perf("ib_send_lat", "-c", "UC", "-s", "5", "-n", "50"),
    "write_bw UC": perf("ib_write_bw", "-c", "UC", "-s", "8191", "-n", "20"),
    "send_bw UD": perf("ib_send_bw", "-c", "UD", "-s", "1001", "-n", "40"),
    "send_lat UD": perf("ib_send_lat", "-c", "UD", "-s", "7", "-n", "50"),
    "rping": lambda mtu: cm("rping", "-C", "20", "-S", "1001", "-V", "-v", own="-a", far="-a", server=("-s",), client=("-c",)),
    "ucmatose": lambda mtu: cm("ucmatose", "-c", "4", "-C", "10", "-S", "1001"),
    "udaddy": lambda mtu: cm("udaddy", "-c", "4", "-C", "10", "-S", "101"),
    "send_bw by rdma_cm": perf("ib_send_bw", "-R", "-s", "8191", "-n", "20"),
}
# 2 bytes to 8 MiB, not captured: a capture of so much takes longer than all of it.
ALL_SIZES = {
    f"{verb}_{what} all sizes": perf(f"ib_{verb}_{what}", "-a", "-n", "5", *(["-o", "4"] if (verb, what) == ("read", "bw") else []))
    for verb in ("send", "write", "read") for what in ("bw", "lat")
}
# With loss: few bytes, since rxe waits 67 ms for each packet that was the last of its burst.
LOSSY = {
    "bytes": check("-n", "20", "--seed", "2"),
    "rc_pingpong": pingpong("ibv_rc_pingpong", "-n", "200", "-c"),
    "srq_pingpong": pingpong("ibv_srq_pingpong", "-n", "200"),
    "send_bw": perf("ib_send_bw", "-s", "65536", "-n", "50"),
    "write_bw": perf("ib_write_bw", "-s", "65536", "-n", "50"),
    "read_bw": perf("ib_read_bw", "-s", "65536", "-n", "50"),
    "atomic_bw": perf("ib_atomic_bw", "-n", "200"),
    "send_bw 4 queue pairs": perf("ib_send_bw", "-q", "4", "-s", "8192", "-n", "100"),
    "send_lat": perf("ib_send_lat", "-s", "64", "-n", "300"),
}
# What docs/bench.md has: fixed sizes, more turns.
FIGURES = {
    "8 B SEND latency": perf("ib_send_lat", "-s", "8", "-n", "500"),
    "8 B WRITE latency": perf("ib_write_lat", "-s", "8", "-n", "500"),
    "8 B READ latency": perf("ib_read_lat", "-s", "8", "-n", "500"),
    "8 B atomic latency": perf("ib_atomic_lat", "-n", "500"),
    "64 KiB SEND": perf("ib_send_bw", "-s", "65536", "-n", "200"),
    "1 MiB WRITE": perf("ib_write_bw", "-s", "1048576", "-n", "20"),
    "1 MiB READ": perf("ib_read_bw", "-s", "1048576", "-n", "20"),
    "8 B SEND rate": perf("ib_send_bw", "-s", "8", "-n", "2000"),
}


# ---- where rxe is ----

def sh(*argv, check=True):
    r = subprocess.run(argv, capture_output=True, text=True, check=False)
    if check and r.returncode:
        raise RuntimeError(f"{shlex.join(argv)}: {r.stderr.strip() or r.returncode}")
    return r.stdout


def inside(ns, *argv):
    return ["ip", "netns", "exec", ns, *argv] if ns else list(argv)


class Side:
    """One end: who answers there, and how a program is run there."""

    def __init__(self, kind, ns, netdev, addresses, build):
        self.kind, self.ns, self.netdev, self.addresses = kind, ns, netdev, addresses
        self.prefix = inside(ns)
        self.device = netdev.replace("vbi", "rxi")
        if kind == "verbena":
            # At the level "info" it says of the first packet with a wrong ICRC that there was one.
            self.prefix += [os.path.join(build, "verbena"), "run", "--log-level=info", "--netdev", netdev, "--"]
            self.device = "verbena0"

    def gid(self, family):
        """The index of this end's GID, for programs that ask for one."""
        want = ipaddress.ip_address(("::ffff:" if family == 4 else "") + self.addresses[family == 6])
        end = time.monotonic() + 20
        while time.monotonic() < end:  # rxe's come from a work queue
            r = subprocess.run([*self.prefix, "ibv_devinfo", "-v", "-d", self.device], capture_output=True, text=True, check=False)
            for index, gid, kind in re.findall(r"GID\[ *(\d+)\]:\s*([0-9a-fA-F:.]+)(?:, (.*))?", r.stdout):
                if ipaddress.ip_address(gid) == want and "v1" not in kind:
                    return index
        raise RuntimeError(f"{self.device} has no GID {want}: {r.stdout[-2000:]}{r.stderr}")

    def counters(self):
        """rxe's, since it was asked last."""
        if self.kind != "rxe":
            return ""
        folder, now = f"/sys/class/infiniband/{self.device}/ports/1/hw_counters", {}
        for name in COUNTERS:
            with contextlib.suppress(OSError), open(os.path.join(folder, name), encoding="ascii") as f:
                now[name] = int(f.read())
        old, self.last = getattr(self, "last", {}), now
        return " ".join(f"{k}={v - old.get(k, 0)}" for k, v in now.items() if v != old.get(k, 0))


def modules():
    for m in "ib_uverbs", "rdma_rxe", "rdma_ucm", "veth", "sch_netem":
        r = subprocess.run(["modprobe", m], capture_output=True, text=True, check=False)
        if r.returncode and m != "sch_netem":
            skip(f"modprobe {m}: {r.stderr.strip()}")
    for f in "all", "default":
        for name, value in ("ipv6/conf/%s/accept_dad", 0), ("ipv4/conf/%s/rp_filter", 0), ("ipv4/conf/%s/accept_local", 1):
            with open("/proc/sys/net/" + name % f, "w", encoding="ascii") as g:
                g.write(str(value))


def tear():
    for dev in ENDS:
        for ns in None, PEER, HOME:
            sh(*inside(ns, "ip", "link", "del", dev), check=False)
    for ns in PEER, HOME:
        sh("ip", "netns", "del", ns, check=False)


@contextlib.contextmanager
def wire(sides, mtu, build):
    """A pair of interfaces, and both its ends.  rxe's end is in the first namespace, Verbena's in one of its own."""
    kinds = {"mixed": ("rxe", "verbena"), "rxe": ("rxe", "rxe"), "verbena": ("verbena", "verbena")}[sides]
    spaces = [None if k == "rxe" else ns for k, ns in zip(kinds, (HOME, PEER))]
    tear()
    try:
        for ns in spaces:
            if ns:
                sh("ip", "netns", "add", ns)
        sh("ip", "link", "add", ENDS[0], "type", "veth", "peer", "name", ENDS[1])
        for ns, dev, (v4, v6) in zip(spaces, ENDS, (A, B)):
            if ns:
                sh("ip", "link", "set", dev, "netns", ns)
                sh(*inside(ns, "ip", "link", "set", "lo", "up"))
            sh(*inside(ns, "ip", "addr", "add", v4 + "/24", "dev", dev))
            sh(*inside(ns, "ip", "-6", "addr", "add", v6 + "/64", "dev", dev, "nodad"))
            sh(*inside(ns, "ip", "link", "set", dev, "mtu", str(mtu), "up"))
        if sides == "rxe":  # nothing asks for the link address of one's own
            for dev, other, addresses in (ENDS[0], ENDS[1], B), (ENDS[1], ENDS[0], A):
                with open(f"/sys/class/net/{other}/address", encoding="ascii") as f:
                    mac = f.read().strip()
                for address in addresses:
                    sh("ip", "neigh", "replace", address, "lladdr", mac, "dev", dev)
        ends = [Side(k, ns, dev, ads, build) for k, ns, dev, ads in zip(kinds, spaces, ENDS, (A, B))]
        for e in ends:
            if e.kind == "rxe":
                sh("rdma", "link", "add", e.device, "type", "rxe", "netdev", e.netdev)
        yield ends
    finally:
        tear()


@contextlib.contextmanager
def lossy(ends, percent):
    for e in ends if percent else ():
        sh(*inside(e.ns, "tc", "qdisc", "add", "dev", e.netdev, "root", "netem", "loss", f"{percent}%", "limit", "20000"))
    try:
        yield
    finally:
        for e in ends if percent else ():
            sh(*inside(e.ns, "tc", "qdisc", "del", "dev", e.netdev, "root"))


def await_written(paths):
    """Until dumpcap has written what it captured: what is in its ring when it is ended is lost.  No event tells of it, so
    the files must stay as they are for a second, which is many of its timeouts."""
    sizes, since = None, time.monotonic()
    while time.monotonic() < since + 1:
        now = [os.path.getsize(path) for path in paths]
        if now != sizes:
            sizes, since = now, time.monotonic()
        time.sleep(0.05)


@contextlib.contextmanager
def captured(ends, out, name):
    """Both ends go into a file each."""
    running, paths = [], []
    try:
        for e in ends if out else ():
            # As they go on the wire, not as the kernel hands them to an interface that can cut.
            net = os.open(f"/run/netns/{e.ns}", os.O_RDONLY) if e.ns else None
            if not offload.cut_in(net, e.netdev):
                print(f"{e.netdev} cannot be told to cut messages")
            path = os.path.join(out, f"{name}-{e.kind}-{e.netdev}.pcapng")
            p = subprocess.Popen(inside(e.ns, "dumpcap", "-q", "-i", e.netdev, "-f", "udp port 4791", "-B", "64", "-w", path),
                                 stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
            running.append(p)
            paths.append(path)
            for line in p.stderr:
                if line.startswith("File:"):
                    break
        yield
        await_written(paths)
    finally:
        for p in running:
            p.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                note = re.search(r"dropped on interface .*", p.communicate(timeout=60)[1])
                print(f"captured {name}: {note.group(0) if note else '?'}", flush=True)


# ---- one case ----

def start(side, argv, logs):
    return subprocess.Popen([*side.prefix, *argv], stdin=subprocess.DEVNULL, stdout=logs[0], stderr=logs[1],
                            start_new_session=True)


def kernel_listening(_, pid):
    """Whether the process has a listener of rdma_cm."""
    return any(f" pid {pid} " in line and " LISTEN " in line for line in sh("rdma", "resource", "show", "cm_id").splitlines())


def cm_listening(server):
    """How one knows that a listener of rdma_cm is there."""
    return rdma_listening if server.kind == "verbena" else kernel_listening


def end(p):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(p.pid, signal.SIGKILL)
    p.wait()


def wrong_icrcs(argv, text):
    """What Verbena says of wrong ICRCs: its sentences, and its count if the program prints that."""
    said = re.findall(r".*wrong checksum \(ICRC\).*", text)
    count = re.search(r"rx_icrc_encapsulated=(\d+)", text)
    if "rx_icrc_encapsulated" in " ".join(argv) and not count:
        said.append("the program did not print Verbena's count of wrong ICRCs")
    if count and int(count.group(1)):
        said.append(f"Verbena counts {count.group(1)} wrong ICRCs")
    return said


def figures(text):
    """The last row of a table of perftest's, or what a ping-pong says; and errors."""
    rows = re.findall(r"^ *\d+ +\d+ +[\d.]+.*$", text, re.M)
    said = re.findall(r"= (.*)", text)
    wrong = re.findall(r"(?im)^.*(?:fail|error|couldn't|unable|invalid|mismatch).*$", text)
    return " ".join((rows[-1].split() if rows else said) + wrong[:3])


SENTENCE = "the kernel's soft-RoCE (module rdma_rxe) holds UDP port 4791 in this network namespace"


class Lab:
    def __init__(self, limit):
        self.port, self.failed, self.done, self.limit = 18600, 0, 0, limit

    def words(self, argv, server, client, gids, six):
        """Of the server and of the client, and how one knows that the server listens."""
        self.port += 1
        if isinstance(argv, dict):
            words = [[*w, server.addresses[six]] for w in (argv["server"], argv["client"])]
            if words[0][0] != "udaddy":  # it has a port of its own
                words = [[*w, "-p", str(self.port)] for w in words]
            return words, cm_listening(server)
        argv = [*argv, "-p", str(self.port)]
        gid = "-x" if argv[0].startswith("ib_") else "-g"
        words = [[*argv, "-d", e.device, gid, g] for e, g in zip((server, client), gids)]
        by_cm = "-R" in argv
        if by_cm:  # its address chooses the device
            words = [argv[:], argv[:]]
        for w, own, far in zip(words, (server, client), (client, server)):
            if "bytes.py" in argv[1]:  # it looks for its GID by itself
                w += ["--own", own.addresses[six], "--far", far.addresses[six]]
            prints = argv[0].startswith("ib_") or "bytes.py" in argv[1]
            if argv[0] in ("ib_read_lat", "ib_atomic_lat"):
                prints = own is client  # such a server has no part in it, and prints nothing
            if own.kind == "verbena" and prints:
                w += ["-W", "hw_counters/rx_icrc_encapsulated"]
        # What is exchanged by TCP goes by lo where both ends are in one namespace.
        words[1].append(server.addresses[0] if server.ns != client.ns else "127.0.0.1")
        return words, cm_listening(server) if by_cm else None

    def case(self, name, argv, server, client, gids, family):
        logs = [[tempfile.TemporaryFile("w+") for _ in range(2)] for _ in range(2)]
        words, ready = self.words(argv, server, client, gids, family == 6)
        began, status = time.monotonic(), [None, None]
        s, c = start(server, words[0], logs[0]), None
        try:
            await_listening(s, self.port, limit=60, ready=ready)
            c = start(client, words[1], logs[1])
            with contextlib.suppress(subprocess.TimeoutExpired):
                status[1] = c.wait(self.limit)
                status[0] = s.wait(20)
        finally:
            for p in s, c:
                if p:
                    end(p)
        texts = []
        for files in logs:
            texts.append("")
            for f in files:
                f.seek(0)
                texts[-1] += f.read() + "\n"
                f.close()
        wrong = [line for e, w, text in zip((server, client), words, texts) if e.kind == "verbena"
                 for line in wrong_icrcs(w, text)]
        ok = status == [0, 0] and not wrong
        self.done += 1
        self.failed += not ok
        counters = " | ".join(filter(None, (e.counters() for e in (server, client))))
        print(f"{'ok    ' if ok else 'FAILED'} {name}: {time.monotonic() - began:.1f} s: {figures(texts[1])}"
              + (f" [{counters}]" if counters else ""), *wrong, flush=True)
        if not ok:
            for who, e, w, st, text in zip(("server", "client"), (server, client), words, status, texts):
                print(f"  {who} ({e.kind}): {shlex.join(w)}: status {st}\n" +
                      "\n".join("    " + t for t in text.splitlines()[-40:] if t), flush=True)

    def port_taken(self, label, end, build):
        """Where soft-RoCE holds the port, Verbena says so, and the program runs without that network."""
        r = subprocess.run([os.path.join(build, "verbena"), "run", "--netdev", end.netdev, "--", "ibv_devinfo", "-d", "verbena0"],
                           stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=self.limit, check=False)
        ok = not r.returncode and SENTENCE in r.stderr and "verbena0" in r.stdout
        self.done += 1
        self.failed += not ok
        print(f"{'ok    ' if ok else 'FAILED'} {label}, soft-RoCE holds the port" + ("" if ok else f": {r}"), flush=True)


def tables(a):
    """(loss, cases) of each turn."""
    if a.figures:
        return [(loss, FIGURES) for loss in a.loss]
    whole = [CASES] if a.quick else [CASES, ALL_SIZES]
    return [turn for loss in a.loss for turn in ([(loss, LOSSY)] if float(loss) else [(loss, t) for t in whole])]


def lab(a):
    """In the machine that has rxe."""
    modules()
    run = Lab(a.limit)
    wanted = lambda name: not a.cases or any(c in name for c in a.cases)
    for sides in a.sides:
        for mtu in a.mtu:
            with wire(sides, mtu, a.build) as ends:
                name = f"{sides} MTU {mtu}"
                if ends[0].kind == "rxe" and not a.figures and wanted(f"{name}, soft-RoCE holds the port"):
                    run.port_taken(name, ends[0], a.build)
                for family in a.family if sides != "rxe" else [f for f in a.family if f == 4]:
                    gids = [e.gid(family) for e in ends]
                    for e in ends:
                        e.counters()
                    for loss, table in tables(a):
                        label = f"{sides} MTU {mtu} IPv{family}" + (f" loss {loss} %" if float(loss) else "")
                        turns = [(0, 1), (1, 0)] if sides == "mixed" else [(0, 1)]
                        todo = [(f"{label}, {ends[s].kind} serves, {n}", w, s, c) for s, c in turns for n, w in table.items()] * a.rounds
                        # perftest 6.06 resolves no IPv6 address where rdma_cm connects it.
                        todo = [t for t in todo if wanted(t[0]) and not (family == 6 and "-R" in t[1](mtu))]
                        if not todo:
                            continue
                        out = a.out if table in (CASES, LOSSY) else None
                        with captured(ends, out, label.replace(" ", "_").replace("%", "")), lossy(ends, float(loss)):
                            for name, argv, s, c in todo:
                                run.case(name, argv(mtu), ends[s], ends[c], (gids[s], gids[c]), family)
    with contextlib.suppress(OSError):
        for line in set(re.findall(r"bad ICRC.*", sh("dmesg", check=False))):
            print(f"FAILED rxe: {line}")
            run.failed += 1
    print(f"{run.done - run.failed} of {run.done} cases passed")
    return 1 if run.failed or not run.done else 0


# ---- this machine ----

def judge(folder):
    """Every capture, by frames.py and by tshark.  tshark does not know CNPs."""
    wrong = 0
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".pcapng"):
            continue
        path = os.path.join(folder, name)
        v = frames.judge(path, ours=() if "_rxe" in name[:4] else B if name.startswith("mixed") else A + B
                         if name.startswith("verbena") else ())
        for n, p, why in v.wrong[:20]:
            print(f"  {name}: frame {n}: {p}: {'; '.join(why)}")
        malformed, lines = "no tshark", []
        if shutil.which("tshark"):
            # It guesses at payloads that begin with what could be the type of an Ethernet frame.
            r = subprocess.run(["tshark", "--disable-protocol", "rpcordma", "-r", path, "-Y",
                                '_ws.malformed && infiniband.bth.opcode != 0x81 && !(frame.protocols contains "infiniband:")'],
                               capture_output=True, text=True, check=False)
            if r.returncode and "cut short" not in r.stderr:
                print(f"  {name}: tshark ended with {r.returncode}: {r.stderr}")
                wrong += 1
            lines = r.stdout.splitlines()
            malformed = f"{len(lines)} malformed to tshark"
            for line in lines[:10]:
                print(f"  {name}: tshark: {line}")
        ok = v.packets and not v.wrong and not lines
        wrong += not ok
        print(f"{'ok    ' if ok else 'FAILED'} {name}: {v.packets} packets, {len(v.wrong)} wrong, {malformed}")
        for n, p, why in v.altered[:20]:
            print(f"         soft-RoCE's frame {n}: {p}: {why}")
        for line in v.lines():
            print(f"         {line}")
    return wrong


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", default=os.path.join(HERE, "..", "..", "build"))
    p.add_argument("--sides", action="append", choices=("mixed", "rxe", "verbena"))
    p.add_argument("--mtu", action="append", type=int)
    p.add_argument("--family", action="append", type=int, choices=(4, 6))
    p.add_argument("--loss", action="append")
    p.add_argument("--figures", action="store_true", help="fixed sizes, for docs/bench.md; no capture")
    p.add_argument("--quick", action="store_true", help="without the cases of all sizes")
    p.add_argument("--rounds", type=int, default=1, help="each case so often")
    p.add_argument("--limit", type=int, default=120, help="seconds for a case")
    p.add_argument("--time", type=int, default=3000, help="seconds for all")
    p.add_argument("--keep", metavar="DIR", help="captures stay there")
    p.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--out", help=argparse.SUPPRESS)
    p.add_argument("cases", nargs="*")
    a = p.parse_args()
    a.build, a.sides, a.mtu = os.path.abspath(a.build), a.sides or ["mixed"], a.mtu or [1500, 9000]
    a.family, a.loss = a.family or [4, 6], a.loss or (["0"] if a.figures else ["0", "1"])
    if a.inside:
        sys.exit(lab(a))
    guest = os.environ.get("VERBENA_GUEST")
    if not guest:
        skip("VERBENA_GUEST is not set: it names a program that runs a command where the kernel has rdma_rxe")
    for program in "ib_send_bw", "ibv_rc_pingpong", "rdma", "ip", "dumpcap":
        if not shutil.which(program):
            skip(f"{program} is not installed (scripts/deps demo test)")
    with contextlib.ExitStack() as stack:
        out = a.keep or stack.enter_context(tempfile.TemporaryDirectory())
        os.makedirs(out, exist_ok=True)
        argv = ["/usr/bin/python3", os.path.abspath(__file__), "--inside", *sys.argv[1:]]
        if not a.figures:
            argv += ["--out", out if guest == "here" else "/share"]
        if guest != "here":
            argv = [guest, "-t", str(a.time), "--", *argv]
        r = subprocess.run(argv, env={**os.environ, "SHARE": os.path.abspath(out), "PYTHONDONTWRITEBYTECODE": "1"}, check=False)
        if r.returncode == 77:
            sys.exit(77)
        wrong = 0 if a.figures else judge(out)
    sys.exit(1 if r.returncode or wrong else 0)


if __name__ == "__main__":
    main()
