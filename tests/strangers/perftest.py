#!/usr/bin/python3
"""Debian's perftest over RC, XRC, UC and UD: each tool with each option that people use and it takes, serially.

Rows that begin with a variable run with that in the environment; {file} is a file in /dev/shm, one for each side: its
memory is mapped by the initiator.  --rounds N repeats the table.  With VERBENA_SOAK=1 all of the matrix runs with perftest's
own counts; else few messages, and of options that take long each over one connection or two: after each size perftest
measures the CPU's frequency for 0.22 s, which with -a are five seconds.

Over UC and UD SENDs have no flow control: perftest posts receives for all that a queue pair is to get, at most 16,384,
before the other end begins, and where a message is lost it waits for ever; so 16,000 messages at most.  Into an SRQ it
posts no more than that for all queue pairs together (`-n 1000 -q 4`: 1000 for 4,000 messages), so that with an adapter, too,
it hangs where the receiver is late by these; so there are as many as may be.

What perftest refuses itself is no row: latency tests with -b, -q or -l; WRITE with -e (its server sees no completion);
READ and atomics over UC; all but SEND over UD; -R over UC and XRC; a group (-g) without -M whose members have GIDs of IPv4,
for the one that it has built in is of IPv6 (ib_send_lat does not look).
"""
import contextlib
import os
import re
import tempfile

import stranger

SOAK = bool(os.environ.get("VERBENA_SOAK"))
# Which tools take which connection.
TOOLS = {"RC": ["send_bw", "send_lat", "write_bw", "write_lat", "read_bw", "read_lat", "atomic_bw", "atomic_lat"],
         "UC": ["send_bw", "send_lat", "write_bw", "write_lat"], "UD": ["send_bw", "send_lat"]}
TOOLS["XRC"] = TOOLS["RC"]
# An option, and how many messages a queue pair sends unless this is a soak (None: perftest's own count).
EVERY = [("-a", 20), ("-m 1024", 200), ("-D 3", None), ("-s 1", 2000)]
BW = [("-b", 500), ("-q 16", 100), ("-l 16 -n 1600", None)]
EVENTS = [("-e", 1000)]
RECEIVES = [("-r 16384 -s 8", 4000)]
SHARED = [("--use-srq -q 4", None)]
# Rows that take long and run in short form, too; the other ones of their option are for a soak.
LONG = {"-a": ["RC write_bw", "RC send_bw", "XRC write_lat", "XRC read_bw", "UC send_lat", "UD send_bw"],
        "-D 3": ["RC write_lat", "XRC send_bw", "UC write_bw", "UD send_lat"]}


def cells(conn, tool):
    """What this tool takes over this connection."""
    verb, test = tool.split("_")
    options = [*EVERY, *(BW if test == "bw" else [])]
    if verb == "atomic":
        options = [o for o in options if o[0] not in ("-a", "-s 1")]  # of one size
    if verb != "write":
        options += EVENTS
    if verb == "send":
        options += RECEIVES + (SHARED if test == "bw" else [])
    lossy = conn in ("UC", "UD") and verb == "send"
    for option, few in options:
        if not SOAK and f"{conn} {tool}" not in LONG.get(option, [f"{conn} {tool}"]):
            continue
        if lossy and "--use-srq" in option:
            option += " -n 16000 -r 16384"
        if few and not SOAK:
            option += f" -n {few}"
        elif option in ("-s 1", "-r 16384 -s 8"):
            option += " -n 16000"
        yield f"ib_{tool} -c {conn} {option}"


def short(line, options):
    """Fewer messages, unless this is a soak."""
    return line if SOAK else f"{line} {options}"


TABLE = (
    [line for conn, tools in TOOLS.items() for tool in tools for line in cells(conn, tool)]
    + [short(f"ib_{verb}_bw -t 15000", "-n 500") for verb in ("send", "write", "read")]
    + [f"ib_{verb}_lat -s 8 -n {100000 if SOAK else 20000}" for verb in ("send", "write", "read")]
    + [short(f"ib_atomic_{test} -A {kind}", "-n 1000")
       for test in ("bw", "lat") for kind in ("CMP_AND_SWAP", "FETCH_AND_ADD")]
    + ["ib_send_lat -I 64 -s 32"]
    + [f"ib_send_lat -c {conn} --use-srq -n 100" for conn in TOOLS]
    + [f"VERBENA_LINK=infiniband ib_send_{test} -n 500 -c {conn}" for test in ("bw", "lat") for conn in ("UC", "UD", "XRC")]
    # To a group of an IPv4 address, as the port's is: perftest wants both ends of a kind.
    + [f"ib_send_{test} -c UD -g -M 0:0:0:0:0:0:0:0:0:0:255:255:239:1:1:1 -r 16384"
       for test in ("bw -s 4096 -n 5000", "bw -s 64 -n 16000")]
    + ["ib_send_lat -c UD -g -s 8 -n 5000"]
    + [f"ib_{test} --mmap={{file}} " + ("-a" if SOAK else "-s 65536 -n 500")
       for test in ("write_bw", "read_bw", "write_lat")]
    + [f"ib_{test} --mmap={{file}} -n 500" for test in ("send_bw -s 4096", "atomic_bw -A FETCH_AND_ADD")]
    + [f"ib_{verb}_{test} -n 500 --odp" for verb in ("send", "write", "read") for test in ("bw", "lat -s 8")]
    + [f"VERBENA_DIRECT=off ib_{test} -n 500" for test in ("write_bw", "read_bw", "write_lat -s 8",
                                                           "atomic_lat -A CMP_AND_SWAP")]
    + [f"VERBENA_PROFILE={p} ib_{test} -n 500" for p in ("strict", "rxe")
       for test in ("send_bw", "write_bw", "read_bw -q 4", "send_lat -s 8", "atomic_bw -A FETCH_AND_ADD")]
    + [f"VERBENA_LINK=infiniband ib_{test} -n 500" for test in ("send_bw -b", "write_bw -q 4", "read_lat -s 8")]
    # Connected by rdma_cm (-R), or with what is agreed upon told by it (-z); a soak has all tools.
    + [f"ib_{tool} -n 500 -R" for tool in (TOOLS["RC"] if SOAK else ("send_bw", "write_lat", "read_bw", "atomic_lat"))]
    + [f"ib_{tool} -n 500 -z" for tool in (TOOLS["RC"] if SOAK else ("send_lat", "write_bw"))]
    + [f"ib_{tool}_bw -n 500 -R -q 16" for tool in (("send", "write", "read", "atomic") if SOAK else ("send",))]
    + ["ib_send_bw -n 500 -R -T 8"] + [f"ib_send_{test} -c UD -n 500 -R" for test in ("bw", "lat")]
    + [f"ib_{tool} -c {conn} -n 500 -z" for conn in ("UC", "UD") for tool in (TOOLS[conn] if SOAK else ("send_bw",))]
)
# perftest turns inline data off on devices that it does not know; of this vendor it knows every part, and it
# stays with ibv_post_send().
INLINE = {"VERBENA_VENDOR_ID": "0x8086"}
ALL_SIZES = [2 ** i for i in range(1, 24)]
NUMBERS = re.compile(r"^ *(\d+) +(\d+) +([\d.]+) +([\d.]+)", re.M)


def no_domain():
    """perftest keeps its domains of XRC in files of /tmp, which are the first user's who ran it."""
    for name in ("/tmp/xrc_domain", "/tmp/xrc_domain_client", "/tmp/xrc_domain_server"):
        if os.path.exists(name) and not os.access(name, os.R_OK):
            return f"{name}, in which perftest has its domain, is another user's"
    return None


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
        self.mistakes = {"check-changed"} if {"-R", "-z"} & set(self.argv) else set()
        self.lacks = no_domain() if value.get("-c") == "XRC" else None
        self.iters = int(value["-n"]) if "-n" in value else None
        # Some wait by reading their memory, without a call: where there are fewer CPUs than such programs, each
        # message takes the scheduler's time.  With -a a soak moves 16 GiB in a row, and WRITEs five times that.
        self.limit = 900 if SOAK else 300 if stranger.checks else 60
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
            if iters == 0 or (self.iters and not {"-q", "-b"} & set(self.argv) and iters != self.iters):
                return f"{iters} iterations of {size} bytes"
        if "-I" in self.argv and not re.search(r"Max inline data\s*: 64\[B\]", client.out):
            return "perftest did not use inline data"
        for who, r in (("client", client), ("server", server)):
            m = re.search(r"Completion with error|Failed status|Couldn't|syndrome", r.out + r.err)
            if m:
                return f"the {who} says: {m.group(0)}"
        return None


def ready(port, pid):
    """With -z the server listens by rdma_cm, else by TCP, with -R too."""
    return stranger.listening(port, pid) or stranger.rdma_listening(port, pid)


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
            return stranger.pair(a.build, argv, mode=mode, env=row.env, limit=row.limit, check=row.check, ready=ready)

    stranger.rows(a, table, run)


if __name__ == "__main__":
    main()
