#!/usr/bin/python3
"""Programs that connect by rdma_cm, between two hosts: network namespaces that a veth pair joins, at MTU 1500 and 9000, with
addresses of IPv4 and IPv6.

    between_cm.py [--build DIR] [--user] [--all] [words of the rows to run]

--user: as root of a user namespace, which needs no privilege.  --all: each program in each of the four networks; else a short
set.
"""
import contextlib
import re
import sys

import hosts
import perftest
import rdmacm
import stranger

NETWORKS = [(mtu, version) for mtu in (9000, 1500) for version in (4, 6)]
# "{server}" and "{client}" are the two hosts' addresses, and {form} is what says of which family they are.
DONE = [(who, "return status 0") for who in ("client", "server")]
PINGS = [("client", "!error"), ("client", "!mismatch"), ("server", "!mismatch")]
ENDS = [(who, "end 0|end\\s*$") for who in ("client", "server")]


def rping(options, lines=0):
    return rdmacm.Row(f"rping -s -a {{server}} -p {{port}} {options}", f"rping -c -a {{server}} -p {{port}} {options}", says=PINGS,
                      lines=lines)


def ucmatose(options=""):
    return rdmacm.Row(f"ucmatose {{form}} -b {{server}} -p {{port}} {options}", f"ucmatose {{form}} -s {{server}} -p {{port}} {options}", says=DONE)


def udaddy(options=""):
    return rdmacm.Row(f"udaddy {{form}} -b {{server}} {options}", f"udaddy {{form}} -s {{server}} {options}", says=DONE)


def small(options=""):
    return rdmacm.Row(f"rdma_server -p {{port}} {options} -s {{server}}", f"rdma_client -s {{server}} -p {{port}} {options}", says=ENDS)


def tool(name, options):
    """One of perftest, which connects by rdma_cm and by TCP."""
    return rdmacm.Row(f"{name} -R -p {{port}} {options}", f"{name} -R -p {{port}} {options} {{server}}", says=[("client", "BW|latency|usec")])


ALL = [rping("-v -C 100", 100), rping("-C 20 -S 65535"), rping("-C 20 -S 23"), ucmatose(), ucmatose("-c 100"),
       ucmatose("-C 100 -S 4000"), udaddy(), udaddy("-c 20"), udaddy("-C 50 -S 1000"), small(), tool("ib_send_bw", "-n 500"), tool("ib_write_lat", "-n 100"), tool("ib_read_bw", "-n 200")]
SHORT = {
    (9000, 4): [rping("-v -C 20", 20), ucmatose("-c 20"), udaddy("-c 20")],
    (9000, 6): [small(), ucmatose("-c 20")],
    (1500, 4): [ucmatose("-C 100 -S 4000"), tool("ib_read_bw", "-n 50"), tool("ib_send_bw", "-n 100 -s 65536")],
    (1500, 6): [rping("-C 20 -S 65535"), udaddy("-C 50 -S 1000")],
}


class Row:
    def __init__(self, row, mtu, version):
        self.row, self.mtu, self.version = row, mtu, version
        self.name = f"MTU {mtu}, IPv{version}: {' '.join(row.client)}"
        self.lacks = None

    def run(self, build, mode, h):
        if self.version == 6 and not h.ipv6:
            return stranger.Pair(None, None, "no IPv6 here")
        tool = self.row.client[0].startswith("ib_")
        fill = {"{server}": h.address(0, self.version), "{client}": h.address(1, self.version),
                "{form}": "-f ipv6" if self.version == 6 else "-f ip"}

        def words(line):
            for name, value in fill.items():
                line = [w.replace(name, value) for w in line]
            return [w for part in line for w in part.split()]
        return stranger.pair(build, words(self.row.server), other=words(self.row.client), port_option=None, host=None, mode=mode,
                             env={**self.row.env, "VERBENA_NETDEV": hosts.NIC}, check=self.row.check, nets=h.nets,
                             ready=perftest.ready if tool else stranger.rdma_listening)


def main():
    everything, user = ("--all" in sys.argv), ("--user" in sys.argv)
    hosts.alone(user)
    sys.argv = [w for w in sys.argv if w not in ("--all", "--user")]
    a = stranger.arguments()
    table = [Row(row, *n) for n in NETWORKS for row in (ALL if everything else SHORT[n])
             if n[1] == 4 or not row.client[0].startswith("ib_")]  # perftest 4.5 resolves no IPv6 address with -R
    stranger.need(*sorted({r.row.client[0] for r in table}))
    with contextlib.ExitStack() as stack:
        networks = {mtu: stack.enter_context(hosts.Hosts(2, mtu)) for mtu in (1500, 9000)}
        stranger.rows(a, table, lambda row, mode: row.run(a.build, mode, networks[row.mtu]))


if __name__ == "__main__":
    main()
