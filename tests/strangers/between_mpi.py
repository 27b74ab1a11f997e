#!/usr/bin/python3
"""UCX and Open MPI between two hosts with names of their own: network and UTS namespaces that a veth pair joins, at MTU 1500 and
9000, by the GIDs of IPv4 and IPv6.

    between_mpi.py [--build DIR] [--user] [--all] [words of the rows to run]

--user: as root of a user namespace, which needs no privilege.  --all: each test in each of the four networks; else a short set.

Open MPI starts ranks on the other host by a script in place of ssh.  UCX's and Open MPI's own set-up goes by TCP over IPv4.
"""
import contextlib
import ctypes
import os
import re
import socket
import sys
import tempfile

import between
import hosts
import mpi
import stranger
import ucx

RANKS = 2  # on each host
UTS = 0x04000000
TLS = ["ud_verbs", "rc_verbs,ud_verbs:aux"]
TESTS = ["tag_lat -s 8 -n 1000", "tag_bw -s 65536 -n 300", "ucp_put_bw -s 65536 -n 300", "ucp_get -s 65536 -n 100", "ucp_fadd -s 8 -n 200",
         f"tag_bw -s {1 << 20} -n 20"]
SHORT_UCX = {(9000, 4): [(TLS[1], TESTS[1])], (9000, 6): [(TLS[0], TESTS[0])], (1500, 4): [(TLS[0], TESTS[1])],
             (1500, 6): [(TLS[1], TESTS[4])]}
SHORT_MPI = {(1500, 6): [1]}
_libc = ctypes.CDLL(None, use_errno=True)


class Names:
    """Gives each of two hosts a name of its own.  enter(i) are the words that start a command on host i; the script `agent` does so by
    the host's address."""

    def __init__(self, h):
        self.h, self.files = h, []

    def __enter__(self):
        before = os.open("/proc/thread-self/ns/uts", os.O_RDONLY)
        for i in range(2):
            if _libc.unshare(UTS):
                raise OSError(ctypes.get_errno(), "unshare")
            socket.sethostname(f"verbena-host{i}")
            self.files.append(os.open("/proc/thread-self/ns/uts", os.O_RDONLY))
            _libc.setns(before, UTS)
        os.close(before)
        self.folder = tempfile.TemporaryDirectory(prefix="verbena-mpi-")
        self.agent = os.path.join(self.folder.name, "agent")
        lines = [f"{self.h.address(i)}) set -- {' '.join(self.enter(i))} sh -c \"$*\";;" for i in range(2)]
        with open(self.agent, "w", encoding="ascii") as f:
            f.write("#!/bin/sh\nto=$1; shift\ncase $to in\n" + "\n".join(lines) + "\n*) exit 1;;\nesac\nexec \"$@\"\n")
        os.chmod(self.agent, 0o755)
        return self

    def enter(self, i):
        me = f"/proc/{os.getpid()}/fd"
        return ["nsenter", f"--net={me}/{self.h.nets[i]}", f"--uts={me}/{self.files[i]}", "--"]

    def __exit__(self, *_):
        self.folder.cleanup()
        for fd in self.files:
            os.close(fd)


class Ucx:
    programs = ["ucx_perftest", "ucx_info"]

    def __init__(self, tls, test, mtu, version):
        self.tls, self.test, self.mtu, self.version = tls, test, mtu, version
        self.name, self.lacks = f"MTU {mtu}, IPv{version}: UCX_TLS={tls} ucx_perftest {test}", None

    def run(self, a, names, more):
        row = ucx.Row(self.tls, self.test, {**more, "VERBENA_NETDEV": hosts.NIC,
                                            "UCX_IB_GID_INDEX": str(between.gid_index(a.build, names.h, self.version))})
        return stranger.pair(a.build, row.argv, host=names.h.address(0), mode="run", env=row.env, check=row.check, terminal=True,
                             nets=names.h.nets)


class Mpi:
    programs = ["mpirun", "nsenter"]

    def __init__(self, which, mtu, version):
        name, self.words, self.env = mpi.ROWS[which]
        self.mtu, self.version = mtu, version
        self.name, self.lacks = f"MTU {mtu}, IPv{version}: Open MPI by {name}, {RANKS} + {RANKS} ranks", None

    def run(self, a, names, more):
        index = str(between.gid_index(a.build, names.h, self.version))
        where = ",".join(f"{names.h.address(i)}:{RANKS}" for i in range(2))
        line = ["mpirun", "--mca", "plm_rsh_agent", names.agent, "-H", where, "-np", str(2 * RANKS), *self.words,
                "/usr/bin/python3", os.path.join(os.path.dirname(os.path.abspath(__file__)), "mpi_ranks.py")]
        r = stranger.run(a.build, line, env={**mpi.ENV, **self.env, **more, "UCX_IB_GID_INDEX": index, "VERBENA_NETDEV": hosts.NIC},
                         ahead=names.enter(0))
        return mpi.judge(r, 2 * RANKS)


def table(everything):
    for n in between.NETWORKS:
        tests = [(tls, test) for tls in TLS for test in TESTS] if everything else SHORT_UCX[n]
        yield from (Ucx(tls, test, *n) for tls, test in tests)
        yield from (Mpi(which, *n) for which in ((0, 1) if everything else SHORT_MPI.get(n, ())))


def main():
    everything, user = ("--all" in sys.argv), ("--user" in sys.argv)
    hosts.alone(user)
    sys.argv = [w for w in sys.argv if w not in ("--all", "--user")]
    a = stranger.arguments()
    a.mode = "run"
    rows = list(table(everything))
    why_no_mpi = mpi.lacks(a)
    for row in rows:
        absent = [p for p in row.programs if not stranger.there(p)]
        row.lacks = f"{', '.join(absent)} not installed" if absent else why_no_mpi if isinstance(row, Mpi) else None
    more = ucx.weak_fences(a) if stranger.there("ucx_info") else {}
    with contextlib.ExitStack() as stack:
        names = {mtu: stack.enter_context(Names(stack.enter_context(hosts.Hosts(2, mtu)))) for mtu in (1500, 9000)}
        stranger.rows(a, rows, lambda row, mode: row.run(a, names[row.mtu], more))


if __name__ == "__main__":
    main()
