"""Where the figures of the bench come from: our own programs, perftest, ucx_perftest, callgrind.

A source makes figures, a dictionary of key -> number, each time that it is asked: in ns, bytes a second, messages a
second or what the key says.  Rows ask for keys (rows.py), and run asks the sources that make them.
"""
import concurrent.futures
import glob
import os
import re
import shutil
import statistics
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "strangers"))
import stranger  # noqa: E402

STATS = ("median", "avg", "p99", "p999")
# perftest's own columns, of which the first two are sizes and counts.
PERFTEST_STATS = {"median": 4, "avg": 5, "p99": 7, "p999": 8}
RANKS = {"median": "50.0", "p99": "99.0", "p999": "99.9"}
WHERE = ("free", "bound")
MTUS = ("9000", "1500")

UCX = {"UCX_TLS": "posix,cma,self", "UCX_WARN_UNUSED_ENV_VARS": "n", "UCX_LOG_LEVEL": "error"}
# Memory that peers cannot reach: UCX then sends its puts and gets as messages, and the target polls.
UCX_MESSAGES = {**UCX, "UCX_TLS": "posix,self", "UCX_ALLOC_PRIO": "heap"}


class Lack(Exception):
    """A sentence: what is missing or went wrong.  The rows stay empty, and it is said once."""


class Context:
    """What all sources know.  library: the build whose libraries are measured; build: the one of the programs."""

    def __init__(self, build, library, messages):
        self.build, self.library, self.messages = build, library, messages
        self.compiler = compiler(os.path.join(library, "lib", "libibverbs.so.1"))
        cpus = sorted(os.sched_getaffinity(0))
        self.cpus = {cpus[1 % len(cpus)]}, {cpus[0]}  # of a server and a client that are bound


def compiler(library):
    """The one that built it, by its own word in the file; the C library's start files may be another's."""
    try:
        with open(library, "rb") as f:
            text = f.read()
    except OSError:
        return None
    m = re.search(rb"[\w ]*clang version [^\0\n]+", text) or re.search(rb"GCC: \([^)]*\) [\d.]+", text)
    return m[0].decode(errors="replace").strip() if m else None


def better(key, a, b):
    """Of two figures of one key in one round."""
    return max(a, b) if bigger(key) else min(a, b)


def bigger(key):
    return "rate" in key or "bw" in key


class Source:
    """makes: what its keys look like, as a regular expression.  turns: in how many rounds it is asked, at most.
    program: what it cannot do without."""

    def __init__(self, name, makes, make, turns=None, program=None):
        self.name, self.makes, self.make, self.turns, self.program = name, re.compile(makes), make, turns, program

    def serves(self, keys):
        return any(self.makes.fullmatch(k) for k in keys)


def own(program, *args, rename=None, before=(), mode="path"):
    """One of our own programs, which print a key and a number a line.  before: the program that starts it."""

    def make(c):
        r = stranger.run(c.library, [*before, os.path.join(c.build, "bench", program), *args], mode=mode, limit=300)
        out = {}
        for line in r.out.splitlines():
            key, value = line.split("\t")
            key = rename(key) if rename else key
            out[key] = better(key, out[key], float(value)) if key in out else float(value)
        if r.status != 0:
            raise OwnFailed(f"{' '.join((program, *args))} ended with status {r.status}: {r.err.strip()}", out)
        return out

    return make


def between(mtu):
    """On two hosts, which a script makes."""
    return own("vbetween", mtu, before=("/usr/bin/python3", os.path.join(ROOT, "bench", "between.py")))


class OwnFailed(Exception):
    """Our own program failed: the whole run does.  figures: those that it had made."""

    def __init__(self, why, figures):
        super().__init__(why)
        self.figures = figures


class Switches:
    """Context switches of the engine threads of two processes, while these run: looks at them now and then."""

    def __init__(self):
        self.seen = {}  # pid -> [(time, switches)]

    def look(self, *pids):
        for pid in pids:
            n = engine_switches(pid)
            if n is not None:
                self.seen.setdefault(pid, []).append((time.monotonic(), n))

    def a_second(self):
        """Of the one that switched more often; None where a process did not last for two looks."""
        rates = [(s[-1][1] - s[0][1]) / (s[-1][0] - s[0][0]) for s in self.seen.values() if len(s) > 1]
        return max(rates) if len(rates) == 2 else None


def engine_switches(pid):
    for task in glob.glob(f"/proc/{pid}/task/*"):
        try:
            with open(os.path.join(task, "comm"), encoding="utf-8") as f:
                if f.read().strip() != "verbena":
                    continue
            with open(os.path.join(task, "status"), encoding="utf-8") as f:
                return sum(int(n) for n in re.findall(r"(?m)^(?:non)?voluntary_ctxt_switches:\s+(\d+)$", f.read()))
        except OSError:
            pass  # it has just ended
    return None


def steal():
    """Ticks that the machine's host has taken, and all ticks."""
    try:
        with open("/proc/stat", encoding="utf-8") as f:
            ticks = [int(w) for w in f.readline().split()[1:9]]
    except (OSError, ValueError):
        return 0, 0
    return ticks[7], sum(ticks)


def steal_share(before):
    """In per cent, since steal() said `before`."""
    now = steal()
    return 100 * (now[0] - before[0]) / (now[1] - before[1]) if now[1] > before[1] else 0.0


SLOWEST = 50000  # round trips a second; a latency test that is slower counts as hung


def run_perftest(c, where, line, limit=120, look=None, env=None, mode="path"):
    argv = line.split()
    p = stranger.pair(c.library, [argv[0], "-F", *argv[1:]], mode=mode, limit=limit, look=look, env=env,
                      cpus=c.cpus if where == "bound" else (None, None))
    if not p.ok:
        raise Lack(f"{line}, {where}: {p.why}")
    return p.client.out


def last_line(text, size):
    found = [line.split() for line in text.splitlines() if re.match(rf" *{size} +\d", line)]
    if not found:
        raise Lack(f"no figures for {size} bytes in what a program of perftest printed")
    return found[-1]


def perftest_lat(verb, where, count, touched=False):
    """touched: the pages of its table of times are present before (bench/touch.c)."""

    def make(c):
        s = Switches()
        name = f"ib_{verb}_lat"
        key = f"{name}_touched_{where}" if touched else f"{name}_{where}"
        env = {"LD_PRELOAD": os.path.join(c.build, "bench", "bench-touch.so")} if touched else None
        n = count(c)
        text = run_perftest(c, where, f"{name} -s 8 -n {n}", limit=60 + n // SLOWEST, look=s.look, env=env)
        words = last_line(text, 8)
        out = {f"{key}_{stat}": float(words[column]) * 1e3 for stat, column in PERFTEST_STATS.items()}
        if s.a_second() is not None and not touched:
            out[f"{key}_switches"] = s.a_second()
        return out

    return make


def perftest_types(where):
    """ib_send_lat of each type of queue pair, one after the other."""

    def make(c):
        n = min(c.messages, 200000)
        return {f"ib_send_lat_{kind.lower()}_{where}": 1e3 * float(last_line(run_perftest(
            c, where, f"ib_send_lat -c {kind} -s 8 -n {n}"), 8)[PERFTEST_STATS["median"]]) for kind in ("RC", "UC", "UD")}

    return make


def perftest_bw(verb, where, size, count):
    """The last two columns: MiB a second, and millions of messages a second."""

    def make(c):
        words = last_line(run_perftest(c, where, f"ib_{verb}_bw -s {size} -n {count}"), size)
        if size == 8:
            return {f"ib_{verb}_rate_8_{where}": float(words[4]) * 1e6}
        return {f"ib_{verb}_bw_{size}_{where}": float(words[3]) * 2 ** 20}

    return make


def perftest_shared(where):
    """With buffers that peers can map (verbena run --share-buffers)."""
    # Not fewer: until the peer's memory is mapped takes 20 ms where a program and its engine share a CPU, and
    # 10,000 messages of 64 KiB take 15 ms.
    tests = [(verb, size, n) for verb in ("send", "write") for size, n in ((8, 1000000), (65536, 100000))]
    tests += [("write", 1 << 20, 12000), ("read", 65536, 100000), ("read", 1 << 20, 12000)]

    def run(c, line):
        return run_perftest(c, where, line, env={"VERBENA_SHARE_BUFFERS": "on"}, mode="run")

    def make(c):
        out = {}
        for verb in ("send", "write"):
            words = last_line(run(c, f"ib_{verb}_lat -s 8 -n {min(c.messages, 200000)}"), 8)
            out.update({f"share_{verb}_lat_{where}_{stat}": float(words[column]) * 1e3
                        for stat, column in PERFTEST_STATS.items()})
        for verb, size, n in tests:
            words = last_line(run(c, f"ib_{verb}_bw -s {size} -n {n}"), size)
            if size == 8:
                out[f"share_{verb}_rate_8_{where}"] = float(words[4]) * 1e6
            else:
                out[f"share_{verb}_bw_{size}_{where}"] = float(words[3]) * 2 ** 20
        return out

    return make


LATE = 20e6  # ns


def two_pairs(c):
    """Two ib_send_lat at once on two CPUs: both servers poll on one, both clients on the other.  perftest tells half
    of each round trip; a message is not longer on its way than the whole one."""
    before, started = steal(), threading.Barrier(2)

    def one(_):
        started.wait()
        return run_perftest(c, "bound", f"ib_send_lat -U -s 8 -n {min(c.messages, 1000000)}", limit=300)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        texts = list(pool.map(one, range(2)))
    round_trips = [2e3 * float(m) for text in texts for m in re.findall(r"(?m)^\d+, ([\d.e+]+)$", text)]
    if not round_trips:
        raise Lack("ib_send_lat -U printed no times")
    return {"pairs_late": 1e6 * sum(t > LATE for t in round_trips) / len(round_trips),
            "pairs_longest": max(round_trips), "pairs_steal": steal_share(before)}


def run_ucx(c, where, test, env):
    """ucx_perftest is a program of its own: server and client over TCP for the set-up, like perftest's."""
    p = stranger.pair("/nonexistent", ["ucx_perftest", *test.split(), "-v", "-f"], mode="path", env=env, limit=60,
                      cpus=c.cpus if where == "bound" else (None, None))
    lines = [line.split(",") for line in p.client.out.strip().splitlines() if "," in line]
    if not p.ok or len(lines) < 2:
        raise Lack(f"ucx_perftest {test}, {where}: {p.why or 'no figures'}")
    return dict(zip(lines[-2], lines[-1]))


def ucx_lat(key, where, test, env, plain=None):
    """It tells one percentile in each run.  plain: the key of the lesser of median and average, since of UCX no laps
    are known."""

    def make(c):
        out = {}
        for stat, rank in RANKS.items():
            columns = run_ucx(c, where, f"{test} -R {rank}", env)
            out[f"{key}_{where}_{stat}"] = float(columns[f"{rank}_percentile_lat"]) * 1e3
            if stat == "median":
                out[f"{key}_{where}_avg"] = float(columns["overall_lat"]) * 1e3
        if plain:
            out[plain] = min(out[f"{key}_{where}_median"], out[f"{key}_{where}_avg"])
        return out

    return make


def ucx_column(key, where, test, column, factor, env=None):
    def make(c):
        return {key: float(run_ucx(c, where, test, env or UCX)[column]) * factor}

    return make


def fabric_lat(where):
    """libfabric's shared memory; fi_pingpong prints its last column but one in us, for half a round trip."""
    words = ["fi_pingpong", "-p", "shm", "-e", "rdm", "-S", "8", "-I", "10000"]

    def make(c):
        p = stranger.pair("/nonexistent", [*words, "-B", "{port}"], other=[*words, "-P", "{port}", "127.0.0.1"], port_option=None,
                          host=None, mode="path", limit=60, cpus=c.cpus if where == "bound" else (None, None))
        found = re.search(r"(?m)^8 .*\s([\d.]+)\s+[\d.]+$", p.client.out)
        if not p.ok or not found:
            raise Lack(f"fi_pingpong -p shm, {where}: {p.why or 'no figures'}")
        return {f"fabric_shm_{where}": float(found[1]) * 1e3}

    return make


# What Open MPI goes by: its own shared memory (the BTL vader), or Verbena by UCX.
MPI_WAYS = {"shm": ["--mca", "pml", "ob1", "--mca", "btl", "vader,self"],
            "verbena": ["--mca", "pml", "ucx", "-x", "UCX_TLS=rc_verbs,ud_verbs,self", "-x", "UCX_NET_DEVICES=verbena0:1"]}


def mpi(way, where):
    words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", "--bind-to", "core" if where == "bound" else "none"]

    def make(c):
        if not os.path.exists(os.path.join(c.build, "bench", "vmpi")):
            raise Lack("the build has no bench/vmpi, because it found no MPI (scripts/deps bench, then rm build/CMakeCache.txt)")
        return own("vmpi", before=words + MPI_WAYS[way], rename=lambda key: f"mpi_{way}_{key}_{where}", mode="run")(c)

    return make


def ucx_fadd(c):
    columns = run_ucx(c, "free", "-t ucp_fadd -s 8 -n 100000", UCX_MESSAGES)
    return {"ucx_fadd": min(float(columns["overall_lat"]), float(columns["50.0_percentile_lat"])) * 1e3}


# Calls that make one request, or take one completion; others are one call.
CALLS = {"wr_inline": 4, "wr_region": 4, "ex_receive": 2, "ex_ack": 2, "ex_completion": 2}


def library_calls(part):
    """What callgrind booked, in one part of its file, on the calls that a vcount_...() made: that name, and the cost of
    what it stands for.  None where there are none."""
    function = name = None
    calls = cost = booked = 0
    for line in part.splitlines():
        if line.startswith("fn="):
            function = line[3:]
        elif line.startswith("calls="):
            booked = int(line[6:].split()[0])
        elif booked:
            if function.startswith("vcount_"):
                name, calls, cost = function[7:], calls + booked, cost + int(line.split()[-1])
            booked = 0
    return (name, cost / calls * CALLS.get(name, 1)) if name else None


def instructions(c):
    """bench/count.c calls each vcount_...() in batches, and callgrind tells each batch by itself.  The median of these
    is told: a call now and then meets the engine."""
    with tempfile.TemporaryDirectory(prefix="verbena-") as folder:
        path = os.path.join(folder, "counts")
        argv = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={path}", "--combine-dumps=yes",
                "--compress-strings=no", "--toggle-collect=vcount_*", "--dump-after=batch_over"]
        r = stranger.run(c.library, [*argv, os.path.join(c.build, "bench", "vcount")], mode="path", limit=300)
        if r.status != 0:
            raise Lack(f"valgrind, which counts instructions: status {r.status}: {stranger.tail(r.err, 3).strip()}")
        with open(path, encoding="utf-8") as f:
            parts = re.split(r"(?m)^part: ", f.read())[1:]
    counts = {}
    for name, cost in filter(None, map(library_calls, parts)):
        counts.setdefault(f"instr_{name}", []).append(cost)
    return with_sums({key: statistics.median(v) for key, v in counts.items()})


# What a SEND of a ping-pong takes at both ends. The ACK of RC comes along with the answer, and its completion is made
# there; that of UC and UD is made in the post.
SENDS = {"instr_send": ("instr_post_inline", "instr_receive_ack", "instr_completion"),
         **{f"instr_{kind}_send": tuple(f"instr_{kind}_{what}" for what in ("post_inline", "receive", "completion"))
            for kind in ("uc", "ud")}}


def with_sums(counts):
    """Where all that is added is there: an older library's run may have less."""
    return {**counts, **{key: sum(counts[k] for k in of) for key, of in SENDS.items() if all(k in counts for k in of)}}


def prefixed(word):
    return lambda key: key.replace("lat_", f"lat_{word}_", 1)


def all_sources():
    yield Source("bench-limits", r"handover|eventfd|relayed|(vm|memcpy)_\w+|cold_line|page_fault|held_up\w*", own("bench-limits"))
    for test in ("send_lat", "send_rate", "send_rate_list", "event_lat", "event_rate", "poll_lat"):
        yield Source(test, test, own("vbench", "direct", test))
    yield Source("send_64k", "send_bw_65536", own("vbench", "direct", "send_64k"))
    yield Source("send_1m", "send_bw_1048576", own("vbench", "direct", "send_1m"))
    for kind in ("private", "shared", "ring"):
        group = "ring" if kind == "ring" else "direct"
        yield Source(kind, rf"{kind}_(?!pingpong)\w+", own("vbench", group, kind))
        yield Source(f"{kind}_pingpong", f"{kind}_pingpong", own("vbench", group, f"{kind}_pingpong"))
    yield Source("polled", r"polled_\w+", own("vbench", "direct", "polled"))
    for where in WHERE:
        yield Source(f"vbench {where}", rf"lat_{where}_\w+", own("vbench", where, rename=prefixed(where)))
    yield Source("types", r"types_\w+", own("vbench", "types"))
    yield Source("threads", r"threads_(write_|read_)?(rate|bw)_\d+", own("vbench", "threads"))
    yield Source("connect", r"connect_\w+", own("vconnect"))
    yield Source("computing", r"computing_\w+", own("vbench", "computing"), turns=3)
    yield Source("quiet", r"quiet_\w+", own("vbench", "quiet"), turns=3)
    # A million regions take a while to register, and gigabytes to touch.
    yield Source("peers", r"peers_\w+", own("vbench", "peers"), turns=3)
    yield Source("lookup", r"lookup_\d+", own("vbench", "lookup"), turns=3)
    yield Source("registration", r"(populate|reg|reg16|odp|relaxed|relaxed16)_\d+|self_\w+",
                 own("vbench", "registration"), turns=3)
    for mtu in MTUS:
        yield Source(f"between {mtu}", rf"between_{mtu}_\w+", between(mtu), program="ip")
    yield from perftest_sources()
    yield from ucx_sources()
    yield Source("instructions", r"instr_\w+", instructions, turns=1, program="valgrind")


def perftest_sources():
    for where in WHERE:
        yield Source(f"ib_send_lat {where}", rf"ib_send_lat_{where}_\w+",
                     perftest_lat("send", where, lambda c: c.messages), program="ib_send_lat")
        yield Source(f"ib_send_lat touched {where}", rf"ib_send_lat_touched_{where}_\w+",
                     perftest_lat("send", where, lambda c: c.messages, touched=True), program="ib_send_lat")
        yield Source(f"ib_send_lat types {where}", rf"ib_send_lat_(rc|uc|ud)_{where}", perftest_types(where),
                     program="ib_send_lat")
        yield Source(f"ib_write_lat {where}", rf"ib_write_lat_{where}_\w+",
                     perftest_lat("write", where, lambda c: c.messages // 4), program="ib_write_lat")
        for verb in ("send", "write"):
            yield Source(f"ib_{verb}_bw 8 {where}", f"ib_{verb}_rate_8_{where}",
                         perftest_bw(verb, where, 8, 1000000), program=f"ib_{verb}_bw")
            yield Source(f"ib_{verb}_bw 65536 {where}", f"ib_{verb}_bw_65536_{where}",
                         perftest_bw(verb, where, 65536, 10000), program=f"ib_{verb}_bw")
        yield Source(f"perftest shared {where}", rf"share_(send|write|read)_\w+_{where}(_\w+)?", perftest_shared(where), turns=3,
                     program="ib_send_lat")
    yield Source("two pairs", r"pairs_\w+", two_pairs, turns=3, program="ib_send_lat")


def ucx_sources():
    for where in WHERE:
        free, tail = where == "free", "" if where == "free" else "_bound"
        yield Source(f"tag_lat {where}", rf"ucx_tag_{where}_\w+" + (r"|ucx_lat" if free else ""),
                     ucx_lat("ucx_tag", where, "-t tag_lat -s 8 -n 200000", UCX, "ucx_lat" if free else None),
                     program="ucx_perftest")
        yield Source(f"put_lat {where}", rf"ucx_put_{where}_\w+" + (r"|ucx_put" if free else ""),
                     ucx_lat("ucx_put", where, "-t ucp_put_lat -s 8 -n 100000", UCX_MESSAGES,
                             "ucx_put" if free else None), program="ucx_perftest")
        yield Source(f"tag_bw 8 {where}", f"ucx_rate{tail}",
                     ucx_column(f"ucx_rate{tail}", where, "-t tag_bw -s 8 -n 2000000", "overall_mr", 1),
                     program="ucx_perftest")
        yield Source(f"fi_pingpong {where}", f"fabric_shm_{where}", fabric_lat(where), turns=3, program="fi_pingpong")
        for way in MPI_WAYS:
            yield Source(f"Open MPI {way} {where}", rf"mpi_{way}_\w+_{where}", mpi(way, where), turns=3, program="mpirun")
        for size, n in ((65536, 5000), (1 << 20, 300)) if free else ((65536, 5000),):
            yield Source(f"tag_bw {size} {where}", f"ucx_bw_{size}{tail}",
                         ucx_column(f"ucx_bw_{size}{tail}", where, f"-t tag_bw -s {size} -n {n}", "overall_bw",
                                    2 ** 20), program="ucx_perftest")
    yield Source("fadd", "ucx_fadd", ucx_fadd, program="ucx_perftest")


def missing(sources):
    """The programs that some of them need and that are not here."""
    return sorted({s.program for s in sources if s.program and not shutil.which(s.program)})
