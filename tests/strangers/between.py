#!/usr/bin/python3
"""rdma-core's ping-pongs and Debian's perftest between two hosts: network namespaces that a veth pair joins, at MTU
1500 and 9000, with addresses of IPv4 and IPv6.

    between.py [--build DIR] [--user] [--all] [words of the rows to run]

--user: as root of a user namespace, which needs no privilege.  --all: each program with each option in each of the four
networks, and with VERBENA_SOAK=1 perftest's own counts; else a short set.
"""
import contextlib
import re
import sys

import hosts
import perftest
import pingpong
import stranger

NETWORKS = [(mtu, version) for mtu in (9000, 1500) for version in (4, 6)]
PINGPONGS = ["ibv_rc_pingpong", "ibv_rc_pingpong -e", "ibv_rc_pingpong -c -s 1000000 -n 100", "ibv_rc_pingpong -m 1024 -s 1",
             "ibv_rc_pingpong -N -c -e", "ibv_srq_pingpong", "ibv_srq_pingpong -e -q 16",
             "ibv_ud_pingpong -c", "ibv_ud_pingpong -e -s 1024 -c",
             "ibv_uc_pingpong", "ibv_uc_pingpong -e -s 1000000 -n 50", "ibv_uc_pingpong -m 1024 -s 1",
             "ibv_xsrq_pingpong -n 500", "ibv_xsrq_pingpong -n 200 -e", "ibv_xsrq_pingpong -n 100 -s 100000"]
# By option: how many messages unless this is a soak, and which tools take it.
OPTIONS = [("-a", 20, perftest.TOOLS["RC"]), ("-m 1024", 500, perftest.TOOLS["RC"]), ("-s 1", 2000, perftest.TOOLS["RC"]),
           ("-b", 300, ["send_bw", "write_bw", "read_bw", "atomic_bw"]),
           ("-q 16", 100, ["send_bw", "write_bw", "read_bw", "atomic_bw"]),
           ("-l 16", 1600, ["send_bw", "write_bw", "read_bw", "atomic_bw"]),
           ("-e", 500, [t for t in perftest.TOOLS["RC"] if "write" not in t])]
# By network, of few messages: after each size perftest measures the CPU's frequency for 0.22 s, so that none here has "-a",
# and the latency tests of WRITE wait without a call, so that on a busy machine each message takes the scheduler's time.
SHORT = {
    (9000, 4): ["ibv_rc_pingpong", "ibv_srq_pingpong -e -q 16 -n 500", "ib_send_bw -s 8388608 -n 10",
                "ibv_ud_pingpong -c -s 4096 -n 500", "ib_send_bw -c UD -n 500", "ibv_uc_pingpong -n 500",
                "ib_send_bw -c XRC -n 100", "ib_write_lat -s 1 -n 50",
                "ib_read_bw -b -n 100", "ib_atomic_bw -q 16 -n 30"],
    (9000, 6): ["ibv_rc_pingpong -N -c -e -n 500", "ib_write_bw -q 16 -n 30", "ib_send_lat -e -n 200",
                "ib_send_lat -c UD -e -n 200", "ibv_xsrq_pingpong -n 300", "ib_send_lat -c UC -s 8192 -n 200"],
    (1500, 4): ["ibv_srq_pingpong -n 500", "ib_send_bw -c UD -g -s 1024 -n 200", "ib_write_bw -b -n 100",
                "ib_send_bw -l 16 -n 320", "ib_read_bw -e -n 100",
                "ib_atomic_lat -m 1024 -n 200", "ib_send_lat -c UD -n 200", "ibv_xsrq_pingpong -n 300 -e", "ib_write_bw -c UC -n 100"],
    (1500, 6): ["ibv_rc_pingpong -c -s 1000000 -n 20", "ib_read_bw -q 16 -n 30", "ib_send_lat -s 1 -n 200",
                "ib_atomic_lat -e -n 200", "ib_send_bw -c UD -g -s 1024 -n 200",
                "ibv_ud_pingpong -c -e -n 500", "ib_send_bw -c UD -s 1024 -q 4 -n 100",
                "ib_write_bw -m 1024 -n 100", "ibv_uc_pingpong -e -s 100000 -n 50", "ib_read_bw -c XRC -n 50"],
}
# To a group of the IP version of the GIDs.  perftest's own group is of IPv6 and of a scope that leaves no host.
GROUPS = {4: "0:0:0:0:0:0:0:0:0:0:255:255:239:1:1:1", 6: "255:14:0:0:0:0:0:0:0:0:0:0:0:0:0:77"}
OF_A_SIZE = ("-a", "-s")  # no options of the tools for atomics, whose messages have 8 bytes
# Nothing waits for the receiver: no more messages than it has posted receives for.  Of UC no more bytes than a socket
# holds while the receiver gets no CPU: perftest waits for ever for a message that is lost.
SERVICES = {"UD": ["-s 1024 -n 1000", "-s 1 -n 2000", "-s 1024 -e -n 500", "-s 1024 -q 4 -n 200"],
            "UC": ["-s 65536 -n 20", "-s 1 -n 2000", "-m 1024 -n 20", "-q 4 -n 20"],
            "XRC": ["-s 65536 -n 100", "-s 1 -n 1000", "-m 1024 -n 200", "-q 4 -n 50"]}


def lines():
    yield from PINGPONGS
    yield from ("ib_send_bw -c UD -g -s 1024 -n 1000", "ib_send_bw -c UD -g -s 1 -e -n 500",
                "ib_send_lat -c UD -g -n 200")
    for service, options in SERVICES.items():
        for tool in perftest.TOOLS[service]:
            yield from (f"ib_{tool} -c {service} {o}" for o in options
                        if ("-q" not in o or "_bw" in tool) and not ("atomic" in tool and o.startswith(OF_A_SIZE)))
    for option, few, tools in OPTIONS:
        for tool in tools:
            if "atomic" in tool and option.startswith(OF_A_SIZE):
                continue
            yield f"ib_{tool} {option}" + ("" if perftest.SOAK or not few else f" -n {few}")


class Row:
    """A line of another table in one of the networks."""

    def __init__(self, line, mtu, version):
        program, *options = line.split()
        self.row = perftest.Row(line) if program.startswith("ib_") else pingpong.Row(program, " ".join(options))
        self.mtu, self.version, self.program = mtu, version, program
        self.name = f"MTU {mtu}, IPv{version}: {line}"
        self.lacks = None

    def run(self, build, mode, h):
        if self.version == 6 and not h.ipv6:
            return stranger.Pair(None, None, "no IPv6 here")
        argv, index = list(self.row.argv), str(gid_index(build, h, self.version))
        if self.program.startswith("ib_"):
            argv += ["-x", index, *(["-M", GROUPS[self.version]] if "-g" in argv else [])]
        else:
            argv[argv.index("-g") + 1] = index
        return stranger.pair(build, argv, host=h.address(0), mode=mode, env={**self.row.env, "VERBENA_NETDEV": hosts.NIC},
                             limit=300 if perftest.SOAK else 90, check=self.row.check, nets=h.nets, ready=perftest.ready)


def gid_index(build, h, version, known={}):
    """Of the address of that version; it is the same on both hosts."""
    if (h, version) not in known:
        p = stranger.Program(*stranger.command(build, ["ibv_devinfo", "-v"], "path", {"VERBENA_NETDEV": hosts.NIC}), net=h.nets[0])
        p.wait(30)
        p.end()
        text = p.result().out + p.result().err
        found = [int(i) for i, gid in re.findall(r"GID\[ *(\d+)\]:\s+(\S+)", text)
                 if gid.rstrip(",") in (h.address(0, version), "::ffff:" + h.address(0, version))]
        if not found:
            sys.exit(f"FAILED  no GID of {h.address(0, version)} in:\n{text}")
        known[h, version] = found[0]
    return known[h, version]


def main():
    # As the other tests, with words of our own.
    everything, user = ("--all" in sys.argv), ("--user" in sys.argv)
    hosts.alone(user)
    sys.argv = [w for w in sys.argv if w not in ("--all", "--user")]
    a = stranger.arguments()
    table = [Row(line, *n) for n in NETWORKS for line in (lines() if everything else SHORT[n])]
    stranger.need("ibv_devinfo", *sorted({r.program for r in table}))
    with contextlib.ExitStack() as stack:
        networks = {mtu: stack.enter_context(hosts.Hosts(2, mtu)) for mtu in (1500, 9000)}
        stranger.rows(a, table, lambda row, mode: row.run(a.build, mode, networks[row.mtu]))


if __name__ == "__main__":
    main()
