#!/usr/bin/python3
"""Programs that connect or join groups by rdma_cm, between two hosts: network namespaces that a veth pair joins, at MTU 1500 and 9000, with
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


def small_x(kind):
    return rdmacm.Row(f"rdma_xserver -p {{port}} -c {kind}", f"rdma_xclient -s {{server}} -p {{port}} -c {kind}", says=ENDS)


def cmtime(options):
    """Its server waits for events until it is ended, on whatever device."""
    row = rdmacm.Row(f"cmtime -b {{server}} -p {{port}} {options}", f"cmtime -s {{server}} -p {{port}} {options}",
                     says=[("client", "(?m)^(connect *:|cm connect )"), ("client", "!failed")])
    row.stays = True
    return row


def tool(name, options):
    """One of perftest, which connects by rdma_cm and by TCP."""
    return rdmacm.Row(f"{name} -R -p {{port}} {options}", f"{name} -R -p {{port}} {options} {{server}}", says=[("client", "BW|latency|usec")])


ALL = [rping("-v -C 100", 100), rping("-C 20 -S 65535"), rping("-C 20 -S 23"), ucmatose(), ucmatose("-c 100"),
       ucmatose("-C 100 -S 4000"), ucmatose("-t 8"), ucmatose("-m"), udaddy(), udaddy("-c 20"), udaddy("-C 50 -S 1000"), small(),
       small_x("r"), small_x("x"), cmtime("-c 100"), tool("ib_send_bw", "-n 500"), tool("ib_send_bw", "-n 100 -q 16"),
       tool("ib_write_lat", "-n 100"), tool("ib_read_bw", "-n 200"), tool("ib_atomic_lat", "-n 200"),
       tool("ib_send_bw", "-c UD -s 1024 -n 500"), tool("ib_send_lat", "-c UD -n 200")]
SHORT = {
    (9000, 4): [rping("-v -C 20", 20), ucmatose("-c 20"), udaddy("-c 20"), small_x("x"), cmtime("-c 20")],
    (9000, 6): [small(), ucmatose("-c 20")],
    (1500, 4): [ucmatose("-C 100 -S 4000"), tool("ib_read_bw", "-n 50"), tool("ib_send_bw", "-n 100 -s 65536"), small_x("r")],
    (1500, 6): [rping("-C 20 -S 65535"), udaddy("-C 50 -S 1000")],
}
# rdma_xserver listens at the wildcard address of IPv4, and perftest 4.5 resolves no IPv6 address with -R.
ONLY_4 = ("rdma_xclient", "ib_send_bw", "ib_send_lat", "ib_write_lat", "ib_read_bw", "ib_atomic_lat")
# What mckey's members join, by IP version, and their options.
GROUPS = [(4, "224.0.77.1", ""), (4, "224.0.77.2", "-c 3"), (4, "224.0.77.3", "-o"), (6, "ff1e::77", ""), (6, "ff1e::78", "-c 3")]


class Row:
    def __init__(self, row, mtu, version):
        self.row, self.mtu, self.version = row, mtu, version
        self.name = f"MTU {mtu}, IPv{version}: {' '.join(row.client)}"
        self.programs, self.lacks = [row.client[0], row.server[0]], None

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
                             ready=perftest.ready if tool else stranger.rdma_listening, stays=getattr(self.row, "stays", False))


class Groups:
    """mckey, all groups at once: a receiver on each host, and a sender on one."""

    def __init__(self, mtu):
        self.mtu, self.name, self.programs, self.lacks = mtu, f"MTU {mtu}: mckey, {len(GROUPS)} groups", ["mckey"], None

    @staticmethod
    def run(build, mode, h):
        del mode
        ended = rdmacm.end_groups({f"mckey -m {group} {options}": rdmacm.start_group(
            build, group, [h.address(i, version) for i in range(2)], options, 1, {"VERBENA_NETDEV": hosts.NIC}, h.nets)
            for version, group, options in GROUPS if version == 4 or h.ipv6})
        wrong = "\n".join(f"{name}: {text}" for name, text in ended.items() if text)
        nothing = stranger.Result([], None, "", "", 0)
        return stranger.Pair(nothing, nothing, wrong or None)


def main():
    everything, user = ("--all" in sys.argv), ("--user" in sys.argv)
    hosts.alone(user)
    sys.argv = [w for w in sys.argv if w not in ("--all", "--user")]
    a = stranger.arguments()
    table = [Row(row, *n) for n in NETWORKS for row in (ALL if everything else SHORT[n]) if n[1] == 4 or row.client[0] not in ONLY_4]
    table += [Groups(mtu) for mtu in ((9000, 1500) if everything else (1500,))]
    stranger.need(*sorted({p for r in table for p in r.programs}))
    with contextlib.ExitStack() as stack:
        networks = {mtu: stack.enter_context(hosts.Hosts(2, mtu)) for mtu in (1500, 9000)}
        stranger.rows(a, table, lambda row, mode: row.run(a.build, mode, networks[row.mtu]))


if __name__ == "__main__":
    main()
