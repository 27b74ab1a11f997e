#!/usr/bin/python3
"""verbena run --pcap between two hosts: the file shows what crossed the network.

The frames of the cable are read beside it (AF_PACKET).  Each packet there is in its sender's file, and each one that a side
has taken in is in its own, byte by byte from the IPv4 identification on.  The files are judged by frames.py and by
tshark."""
import collections
import ctypes
import fcntl
import glob
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading

import hosts
import stranger

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "interop"))
import frames

ROCE, ETH_P_ALL, SIOCETHTOOL, GSSET_INFO, GSTRINGS, SFEATURES, FEATURES = 4791, 3, 0x8946, 0x37, 0x1B, 0x3B, 4


ROWS = [(4, "-n 30 -s 5000", {}), (4, "-n 200 -s 8 -e", {}), (6, "-n 30 -s 5000", {}),
        (4, "-n 30 -s 5000", {"VERBENA_UDP_GSO": "off"}), (4, "-n 30 -s 5000", {"VERBENA_UDP_CHECKSUM": "off"}),
        (6, "-n 30 -s 5000", {"VERBENA_UDP_CHECKSUM": "off"})]


class Wrong(Exception):
    pass


def ethtool(s, request):
    """What the kernel makes of a request to the interface."""
    data = ctypes.create_string_buffer(request, len(request))
    fcntl.ioctl(s, SIOCETHTOOL, struct.pack("16sP16x", hosts.NIC.encode(), ctypes.addressof(data)))
    return data.raw


def no_gso(net):
    """The kernel cuts packets before the interface, so that its frames are those of a network.  (In a thread.)"""
    hosts.enter(net)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        count = struct.unpack_from("=I", ethtool(s, struct.pack("=IIQI", GSSET_INFO, 0, 1 << FEATURES, 0)), 16)[0]
        names = ethtool(s, struct.pack("=III", GSTRINGS, FEATURES, count) + bytes(32 * count))[12:]
        at = [names[32 * i:32 * i + 32].rstrip(b"\0") for i in range(count)].index(b"tx-udp-segmentation")
        blocks = [(1 << at % 32, 0) if at // 32 == i else (0, 0) for i in range((count + 31) // 32)]
        ethtool(s, struct.pack("=II", SFEATURES, len(blocks)) + b"".join(struct.pack("=II", *b) for b in blocks))


class Sniffer(threading.Thread):
    """The frames that leave and reach one end of the cable."""

    def __init__(self, net):
        super().__init__(daemon=True)
        self.net, self.frames, self.socket, self.ready, self.over = net, [], None, threading.Event(), False
        self.start()
        self.ready.wait()

    def run(self):
        hosts.enter(self.net)  # of this thread alone
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        self.socket.bind((hosts.NIC, ETH_P_ALL))
        self.socket.settimeout(0.2)
        self.ready.set()
        while True:
            try:
                self.frames.append(self.socket.recv(1 << 16))
            except TimeoutError:
                if self.over:
                    return

    def end(self):
        self.over = True
        self.join()
        self.socket.close()
        return self.frames


def key(frame):
    """(source, everything that is the same in a file and on the cable), None: no RoCEv2."""
    kind = struct.unpack_from(">H", frame, 12)[0]
    if kind == 0x0800:
        ip, udp, source = frame[14:34], frame[34:], frame[26:30]
        fixed = ip[2:8] + ip[12:]
    elif kind == 0x86DD:
        ip, udp, source = frame[14:54], frame[54:], frame[22:38]
        fixed = ip[4:7] + ip[8:]
    else:
        return None
    if (ip[9] if kind == 0x0800 else ip[6]) != 17 or struct.unpack_from(">H", udp, 2)[0] != ROCE:
        return None
    length = struct.unpack_from(">H", udp, 4)[0]
    return source, fixed + udp[:6] + udp[8:length]


def ids_and_checksums(found):
    """Of IPv4's packets of RoCEv2."""
    ours = [bytes(f) for f in found if key(f) and f[12:14] == b"\x08\0"]
    return {f[18:20] for f in ours}, {f[40:42] for f in ours}


def settings(found, env):
    ids, checksums = ids_and_checksums(found)
    if env.get("VERBENA_UDP_GSO") == "off" and ids != {b"\0\0"}:
        raise Wrong(f"packets that are sent one by one have {len(ids)} identifications")
    if (env.get("VERBENA_UDP_CHECKSUM") == "off") != (checksums == {b"\0\0"}):
        raise Wrong(f"{len(checksums)} checksums")


def by_source(found):
    out = collections.defaultdict(collections.Counter)
    for f in found:
        k = key(bytes(f))
        if k:
            out[k[0]][k[1]] += 1
    return out


def tshark(path):
    if not shutil.which("tshark"):
        return
    r = subprocess.run(["tshark", "--disable-protocol", "rpcordma", "-r", path, "-Y", "_ws.malformed || ip.checksum.status == 0 || "
                        "udp.checksum.status == 0 && ipv6", "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"],
                       capture_output=True, text=True, timeout=120, check=False)
    if r.returncode or r.stdout.strip():
        raise Wrong(f"tshark says of {path}: {r.stdout[:500]}{r.stderr}")


def compare(cable, files):
    """A sender's file has all that it sent; the other one all that came, which is less if a socket's buffer was full."""
    found = [by_source(f for _, f, _ in frames.frames(path)) for path in files]
    for source, packets in cable.items():
        less = [sum((packets - mine[source]).values()) for mine in found]
        more = [sum((mine[source] - packets).values()) for mine in found]
        if any(more) or min(less) or max(less) > sum(packets.values()) // 2:
            raise Wrong(f"from {source.hex()}: {sum(packets.values())} packets on the cable; {less} are missing in the files, and "
                        f"{more} in them are others")


def one(a, h, folder, argv, version, more):
    for f in glob.glob(os.path.join(folder, "*")):
        os.unlink(f)
    sniffer = Sniffer(h.nets[0])
    env = {"VERBENA_NETDEV": hosts.NIC, "VERBENA_PCAP": os.path.join(folder, "both.pcapng"), "VERBENA_PCAP_SNAP": "0",
           **more}
    p = stranger.pair(a.build, argv, host=h.address(0), nets=tuple(h.nets), env=env)
    found = sniffer.end()
    cable = by_source(found)
    files = sorted(glob.glob(os.path.join(folder, "both.pcapng*")))
    if not p.ok:
        raise Wrong(f"{p.why}\n{p.server.err}{p.client.err}")
    if len(files) != 2 or len(cable) != 2:
        raise Wrong(f"{len(files)} files and {len(cable)} sources")
    compare(cable, files)
    if version == 4:
        settings(found, more)
    for path in files:
        tshark(path)
        r = subprocess.run([sys.executable, frames.__file__, "--ours", h.address(0, version), "--ours", h.address(1, version), path],
                           capture_output=True, text=True, check=False)
        if r.returncode:
            raise Wrong(f"frames.py says of {path}: {r.stdout[:2000]}{r.stderr}")
    return sum(sum(c.values()) for c in cable.values())


def same_host(a, h):
    """Between two processes of a host, by its own address."""
    env = {"VERBENA_NETDEV": hosts.NIC, "VERBENA_WIRE": "udp"}
    p = stranger.pair(a.build, ["ibv_rc_pingpong", "-g", "0", "-n", "30"], host=h.address(0), nets=(h.nets[0], h.nets[0]), env=env)
    if not p.ok:
        raise Wrong(f"{p.why}\n{p.server.err}{p.client.err}")


def main():
    a = stranger.arguments()
    stranger.need("ibv_rc_pingpong")
    hosts.alone()
    failed = 0
    with tempfile.TemporaryDirectory() as folder, hosts.Hosts(mtu=1500) as h:
        gids = {4: 0, 6: 1}
        for net in h.nets:
            t = threading.Thread(target=no_gso, args=(net,))
            t.start()
            t.join()
        for version, options, env in ROWS:
            argv = ["ibv_rc_pingpong", "-g", str(gids[version]), *options.split()]
            try:
                n = one(a, h, folder, argv, version, env)
                print(f"ok      {' '.join([*argv, *env])}: {n} packets")
            except Wrong as e:
                failed += 1
                print(f"FAILED  {' '.join([*argv, *env])}: {e}")
        try:
            same_host(a, h)
            print("ok      ibv_rc_pingpong within a host by UDP")
        except Wrong as e:
            failed += 1
            print(f"FAILED  ibv_rc_pingpong within a host by UDP: {e}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
