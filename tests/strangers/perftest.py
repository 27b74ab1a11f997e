#!/usr/bin/python3
"""Debian's perftest over RC, UC, UD and XRC: bandwidth, latency and atomics, with the options that people use, serially.

Rows that begin with a variable run with that in the environment; {file} is a file in /dev/shm, one for each side: its
memory is mapped by the initiator.  --rounds N repeats the table.  Over UC and UD SENDs have no flow control: perftest posts
receives for all that a queue pair is to get, at most 16,384, before the other end begins.  Into an SRQ it posts no more than
that for all queue pairs together, so with several of them one message that comes too soon is lost and it waits for ever:
no row.  ib_write_bw and ib_write_lat have no -e (their server sees no completion), and
the atomics have fixed size.
"""
import contextlib
import os
import re
import tempfile

import stranger

BW = ["-a", "-b", "-q 16", "-l 16 -n 1600", "-m 1024", "-D 3", "-s 1", "-t 15000"]
LAT = ["-a", "-s 8 -n 100000"]
# What perftest takes over any transport; SENDs have receive queues besides.
EACH_BW = ["-a -n 50", "-b", "-q 16 -n 500", "-l 16 -n 1600", "-m 1024", "-s 1 -n 16000"]
EACH_SEND = ["-e", "-r 16384 -n 16000 -s 8"]
TABLE = (
    [f"ib_{verb}_bw {o}" for verb in ("send", "write", "read") for o in BW]
    + ["ib_send_bw -e", "ib_read_bw -e", "ib_send_bw -r 16384", "ib_send_bw --use-srq -q 4"]
    + [f"ib_{verb}_lat {o}" for verb in ("send", "write", "read") for o in LAT]
    + ["ib_send_lat -e", "ib_read_lat -e"]
    + [f"ib_atomic_{test} -A {kind}" for test in ("bw", "lat") for kind in ("CMP_AND_SWAP", "FETCH_AND_ADD")]
    + ["ib_send_lat -I 64 -s 32"]
    + [f"ib_{test} -c XRC" for test in ("send_bw -a", "send_bw -b -q 4", "write_bw", "read_bw", "send_lat -s 8 -n 10000",
                                        "write_lat -s 8 -n 1000", "atomic_bw -A FETCH_AND_ADD", "send_bw -r 16384 -n 16000 -s 8",
                                        "send_bw --use-srq -q 4", "send_bw -l 16 -n 1600", "write_bw -m 1024 -b -q 16 -n 200",
                                        "read_bw -e", "read_lat -s 8 -n 1000", "atomic_lat -A CMP_AND_SWAP -n 1000")]
    + [f"ib_send_bw -c {kind} {o}" for kind in ("UC", "UD") for o in EACH_BW + EACH_SEND]
    + [f"ib_send_lat -c {kind} {o}" for kind in ("UC", "UD") for o in ("-e", "--use-srq -n 100", "-m 1024 -s 1024")]
    + [f"ib_write_bw -c UC {o}" for o in EACH_BW[1:]] + ["ib_write_lat -c UC -s 8 -n 1000"]
    + [f"VERBENA_LINK=infiniband ib_send_{test} -c {kind}" for test in ("bw", "lat") for kind in ("UC", "UD", "XRC")]
    # To a group of an IPv4 address, as the port's is: perftest wants both ends of a kind.
    + [f"ib_send_{test} -c UD -g -M 0:0:0:0:0:0:0:0:0:0:255:255:239:1:1:1 -r 16384"
       for test in ("bw -s 4096 -n 5000", "bw -s 64 -n 16000")]
    + ["ib_send_lat -c UD -g -s 8 -n 10000"]
    + [f"ib_{test} --mmap={{file}}" for test in ("write_bw -a", "read_bw -a", "write_lat -a", "send_bw -s 4096",
                                                 "atomic_bw -A FETCH_AND_ADD")]
    + [f"ib_{verb}_{test} --odp" for verb in ("send", "write", "read") for test in ("bw", "lat -s 8 -n 1000")]
    + [f"VERBENA_DIRECT=off ib_{test}" for test in ("write_bw", "read_bw", "write_lat -s 8 -n 1000",
                                                    "atomic_lat -A CMP_AND_SWAP")]
    + [f"VERBENA_PROFILE={p} ib_{test}" for p in ("strict", "rxe")
       for test in ("send_bw", "write_bw", "read_bw -q 4", "send_lat -s 8 -n 1000", "atomic_bw -A FETCH_AND_ADD")]
    + [f"VERBENA_LINK=infiniband ib_{test}" for test in ("send_bw -b", "write_bw -q 4", "read_lat -s 8 -n 1000")]
)
# perftest turns inline data off on devices that it does not know; of this vendor it knows every part, and it
# stays with ibv_post_send().
INLINE = {"VERBENA_VENDOR_ID": "0x8086"}
ALL_SIZES = [2 ** i for i in range(1, 24)]
NUMBERS = re.compile(r"^ *(\d+) +(\d+) +([\d.]+) +([\d.]+)", re.M)


class Row:
    def __init__(self, line):
        self.name = line
        words = line.split()
        self.env = dict(w.split("=", 1) for w in words if re.match("[A-Z_]+=", w))
        self.argv = words[len(self.env):]
        self.argv.insert(1, "-F")  # no word about the CPU's frequency
        if "-I" in self.argv:
            self.env.update(INLINE)
        value = dict(zip(self.argv, self.argv[1:]))
        self.iters = int(value["-n"]) if "-n" in value else None
        # It waits by reading its memory, without a call: where there are no more CPUs than such programs, the
        # engine thread gets its turn when the scheduler says so.
        self.limit = 400 if self.argv[0] == "ib_write_lat" else stranger.LIMIT
        # perftest shortens what no datagram can be: to the MTU.
        most = int(value.get("-m", 4096)) if value.get("-c") == "UD" else ALL_SIZES[-1]
        if "-a" in self.argv:
            sizes = ALL_SIZES
        elif "-s" in value:
            sizes = [int(value["-s"])]
        elif "atomic" in line:
            sizes = [8]
        else:
            sizes = [65536 if "_bw" in line else 2]
        self.sizes = [s for s in sizes if s <= most] or [most]

    def check(self, client, server):
        found = [(int(m.group(1)), int(m.group(2))) for m in NUMBERS.finditer(client.out)]
        if [size for size, _ in found] != self.sizes:
            return f"results for sizes {[s for s, _ in found]}, not {self.sizes}"
        for size, iters in found:
            if iters == 0 or (self.iters and "-q" not in self.argv and iters != self.iters):
                return f"{iters} iterations of {size} bytes"
        if "-I" in self.argv and not re.search(r"Max inline data\s*: 64\[B\]", client.out):
            return "perftest did not use inline data"
        for who, r in (("client", client), ("server", server)):
            m = re.search(r"Completion with error|Failed status|Couldn't|syndrome", r.out + r.err)
            if m:
                return f"the {who} says: {m.group(0)}"
        return None


def main():
    a = stranger.arguments()
    table = [Row(line) for line in TABLE]
    stranger.need(*sorted({r.argv[0] for r in table}))

    def run(row, mode):
        with contextlib.ExitStack() as stack:
            argv = row.argv
            if "{file}" in row.name:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="perftest-", dir="/dev/shm"))
                for side in ("server", "client"):
                    with open(os.path.join(folder, side), "wb") as f:
                        f.truncate(64 << 20)
                argv = [w.replace("{file}", folder + "/{side}") for w in argv]
            return stranger.pair(a.build, argv, mode=mode, env=row.env, limit=row.limit, check=row.check)

    stranger.rows(a, table, run)


if __name__ == "__main__":
    main()
