"""The rows of the bench: a figure beside its limit, and the aims (docs/bench.md says how they are read)."""
import statistics

from sources import MTUS, STATS, WHERE, bigger

LARGE = ((65536, "64 KiB"), (1 << 20, "1 MiB"), (4 << 20, "4 MiB"))
UNITS = {"ns": 1, "us": 1e-3, "ms": 1e-6, "M/s": 1e-6, "GB/s": 1e-9, "instr": 1, "/s": 1, "ppm": 1, "%": 1}
STAT_TEXT = dict(zip(STATS, ("median", "average", "99 %", "99.9 %")))


class Row:
    """A figure beside its limit: their ratio, and whether it reaches the aim, `times` the limit and `plus` ns.

    limit: a key; (key, factor[, key to add]); a number, which is as given; None."""

    def __init__(self, name, key, unit, against="", limit=None, times=None, plus=0):
        self.name, self.key, self.unit, self.against, self.limit = name, key, unit, against, limit
        self.times, self.plus = times, plus

    def keys(self):
        """All that it needs."""
        if isinstance(self.limit, tuple):
            return [self.key, self.limit[0], *self.limit[2:]]
        return [self.key, self.limit] if isinstance(self.limit, str) else [self.key]

    def limit_in(self, figures):
        if self.limit is None or isinstance(self.limit, (int, float)):
            return self.limit
        key, factor, *more = self.limit if isinstance(self.limit, tuple) else (self.limit, 1)
        if not figures.get(key) or any(k not in figures for k in more):
            return None
        return figures[key] * factor + sum(figures[k] for k in more)

    def judge(self, rounds):
        """The medians of all rounds; of the ratio that of each round's own, since a virtual machine's CPUs may lie
        nearer together in one round than in another."""
        self.values = [r[self.key] for r in rounds if r.get(self.key) is not None]
        self.value = statistics.median(self.values) if self.values else None
        pairs = [(r[self.key], self.limit_in(r)) for r in rounds if r.get(self.key) is not None]
        pairs = [(v, at) for v, at in pairs if at]
        self.limits = [at for _, at in pairs]
        self.at = statistics.median(self.limits) if pairs else None
        self.ratio = statistics.median(v / at for v, at in pairs) if pairs else None
        more = bigger(self.key)
        self.aim = self.times + self.plus / self.at if self.times and self.at else None
        self.reached = None
        if self.aim:
            part = statistics.median(v / (at * self.times + self.plus) for v, at in pairs)
            self.reached = part >= 1 if more else part <= 1
        self.aim_text = f"{'>=' if more else '<='} {self.aim:.2f}" if self.aim else "-"

    def json(self):
        """Of a row that has values."""
        scale = UNITS[self.unit]
        values = [v * scale for v in self.values]
        return {"operation": self.name, "key": self.key, "unit": self.unit, "against": self.against,
                "value": self.value * scale, "min": min(values), "max": max(values),
                "limit": self.at and self.at * scale, "ratio": self.ratio, "aim": self.aim,
                "reached": self.reached, "raw": values, "raw_limit": [at * scale for at in self.limits]}


def size_text(n):
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if n >> shift:
            return f"{n >> shift} {unit}"
    return f"{n} B"


def spread(name, key, ucx, where, first=None, tails=True):
    """Median, average, 99 % and 99.9 % of a latency.  first: what the median is held against; tails: average and
    99 % are held against the median; UCX's own stand beside."""
    if first:
        yield Row(f"{name}, median", f"{key}_median", "ns", *first)
    if tails:
        for stat, times in (("avg", 1.15), ("p99", 2), ("p999", None)):
            yield Row(f"{name}, {STAT_TEXT[stat]}", f"{key}_{stat}", "ns", "its median", f"{key}_median", times)
    if ucx:
        for stat in STATS[1:]:
            yield Row(f"{name}, {STAT_TEXT[stat]}", f"{key}_{stat}", "ns", f"UCX, {where}",
                      f"{ucx}_{where}_{stat}")


def perftest():
    for where in WHERE:
        key = f"ib_send_lat_{where}"
        yield from spread(f"ib_send_lat, {where}", key, "ucx_tag", where,
                          (f"UCX tag_lat, {where}", f"ucx_tag_{where}_median", 0.95))
        yield Row(f"ib_send_lat, {where}: engine's switches", f"{key}_switches", "/s", "", 110, 1)
        yield from spread(f"ib_send_lat, {where}, its times' pages present", f"ib_send_lat_touched_{where}", None, where)
        yield Row(f"ib_send_lat, {where}, average", f"{key}_avg", "ns", f"libfabric's shm, {where}", f"fabric_shm_{where}")
    for where in WHERE:
        yield from spread(f"ib_write_lat, {where}", f"ib_write_lat_{where}", "ucx_put", where,
                          (f"UCX put_lat, {where}", f"ucx_put_{where}_median", 1), tails=False)
    for where, tail in zip(WHERE, ("", "_bound")):
        for verb in ("send", "write"):
            yield Row(f"ib_{verb}_bw 8 B, {where}", f"ib_{verb}_rate_8_{where}", "M/s", f"UCX tag_bw, {where}",
                      f"ucx_rate{tail}", 1 if verb == "send" else None)
        yield Row(f"ib_send_bw 64 KiB, {where}", f"ib_send_bw_65536_{where}", "GB/s", f"UCX tag_bw, {where}",
                  f"ucx_bw_65536{tail}", 1)
        yield Row(f"ib_write_bw 64 KiB, {where}", f"ib_write_bw_65536_{where}", "GB/s", "process_vm_writev",
                  "vm_write_bw_65536", 0.95)
    yield Row("a thread that only reads the clock is held up", "held_up", "/s")
    yield Row("the same, share of its time", "held_up_share", "%")
    yield Row("a page fault, of which ib_send_lat has one for 512 messages", "page_fault", "ns")
    text = "two ib_send_lat on two CPUs"
    yield Row(f"{text}: over 20 ms", "pairs_late", "ppm", "1 of a million messages", 1, 1)
    yield Row(f"{text}: the longest", "pairs_longest", "ms", "", 200e6, 1)
    yield Row(f"{text}: steal time", "pairs_steal", "%")


def share_buffers():
    for where, tail in zip(WHERE, ("", "_bound")):
        text = f"--share-buffers, {where}"
        for verb, ucx, aim in (("send", "tag", None), ("write", "put", 1)):
            yield from spread(f"ib_{verb}_lat {text}", f"share_{verb}_lat_{where}", f"ucx_{ucx}", where,
                              (f"UCX {ucx}_lat, {where}", f"ucx_{ucx}_{where}_median", aim), tails=False)
        for verb, aim in (("send", None), ("write", 0.5)):
            yield Row(f"ib_{verb}_bw 8 B {text}", f"share_{verb}_rate_8_{where}", "M/s", f"UCX tag_bw, {where}",
                      f"ucx_rate{tail}", aim)
        yield Row(f"ib_send_bw 64 KiB {text}", f"share_send_bw_65536_{where}", "GB/s", f"UCX tag_bw, {where}",
                  f"ucx_bw_65536{tail}", 2)
        for verb in ("write", "read"):
            for n, size in LARGE[:2]:
                yield Row(f"ib_{verb}_bw {size} {text}", f"share_{verb}_bw_{n}_{where}", "GB/s", "memcpy", f"memcpy_bw_{n}", 0.6)


def open_mpi():
    for where in WHERE:
        for key, text, unit in (("lat_8", "8 B, half a round trip", "ns"), ("bw_65536", "64 KiB", "GB/s"), ("bw_1048576", "1 MiB", "GB/s")):
            yield Row(f"Open MPI by UCX over RC, {text}, {where}", f"mpi_verbena_{key}_{where}", unit, "its own shared memory",
                      f"mpi_shm_{key}_{where}")


def own_loop():
    for how, text in (("inline", "inline"), ("region", "from a region")):
        for where in WHERE:
            yield from spread(f"SEND 8 B, {text}, {where}", f"lat_{where}_{how}", None, where,
                              ("cache-line hand-over + 110 ns", "handover", 1, 110))


def instruction_counts():
    for key, text, aim in (("empty", "a poll that finds nothing", 50), ("post_inline", "post of a SEND, inline", 250),
                           ("post_region", "post of a SEND, from a region", 250),
                           ("post_recv", "post of a receive", None), ("receive", "poll that takes a SEND in", 350),
                           ("receive_ack", "poll that takes one in, an ACK along", None),
                           ("ack", "poll that takes an ACK in: a send completion", None),
                           ("completion", "poll for a send completion that is there", 80),
                           ("write_inline", "post of a WRITE to mapped memory, inline, and its completion", None),
                           ("write_region", "post of a WRITE to mapped memory, from a region, and its completion", None),
                           ("read", "post of a READ from mapped memory, and its completion", None),
                           ("fetch_add", "post of a Fetch & Add on mapped memory, and its completion", None),
                           ("post_srq_recv", "post of a receive to an SRQ", None)):
        yield Row(text, f"instr_{key}", "instr", "", aim, aim and 1)
    for how, text in (("inline", "inline"), ("region", "from a region")):
        yield Row(f"post of a SEND call by call (ibv_wr_*), {text}", f"instr_wr_{how}", "instr", "ibv_post_send",
                  f"instr_post_{how}", 1.05)
    for key, text in (("empty", "nothing"), ("receive", "a SEND"), ("ack", "an ACK"), ("completion", "a completion that is there")):
        yield Row(f"ibv_start_poll to ibv_end_poll: {text}", f"instr_ex_{key}", "instr", "ibv_poll_cq", f"instr_{key}", 1.05)
    for kind in ("uc", "ud"):
        for key, text, aim in (("post_inline", "post of a SEND, inline, and its completion", None),
                               ("post_region", "post of a SEND, from a region, and its completion", None),
                               ("receive", "poll that takes a SEND in", 1.05),
                               ("completion", "poll for a send completion that is there", 1.05),
                               ("send", "a SEND, all of these calls", 1.05)):
            yield Row(f"{kind.upper()}: {text}", f"instr_{kind}_{key}", "instr", "RC", f"instr_{key}", aim)


def peers():
    for n in (1, 64):
        yield Row(f"post of a datagram to one of {n} processes that sleep", f"instr_peers_{n}_post", "instr",
                  *(("1 process", "instr_peers_1_post", 1.2) if n > 1 else ()))
    for n in (1, 500):
        yield Row(f"the same to one of {n}, and its completion, in time", f"peers_send_{n}", "ns",
                  *(("1 process", "peers_send_1", 1.2) if n > 1 else ()))
    for n in (1, 500):
        yield Row(f"the same to one of {n} that poll, and are stopped", f"peers_awake_{n}", "ns",
                  *(("1 process", "peers_awake_1") if n > 1 else ()))
    for n in (1, 500):
        yield Row(f"a byte to one of {n} processes that sleep in recv()", f"peers_bell_{n}", "ns",
                  *(("1 process", "peers_bell_1") if n > 1 else ()))


def quiet():
    yield Row("a poll that finds nothing, 1 quiet peer", "quiet_poll_1", "ns")
    for n, aim in ((50, None), (500, 2)):
        yield Row(f"a poll that finds nothing, {n} quiet peers", f"quiet_poll_{n}", "ns", "1 quiet peer",
                  "quiet_poll_1", aim)
    yield Row("SEND 8 B, half round trip, 1 quiet peer", "quiet_lat_1", "ns")
    for n, aim in ((50, None), (500, 1.2)):
        yield Row(f"SEND 8 B, half round trip, {n} quiet peers", f"quiet_lat_{n}", "ns", "1 quiet peer",
                  "quiet_lat_1", aim)
    for key, text in (("quiet_talking", "after 200 ms, in which it talks to itself"),
                      ("quiet_again", "after 200 ms of silence"), ("quiet", "of its life")):
        yield Row(f"first message of one of 500 quiet peers {text}", f"{key}_first", "ns", "its later ones, + 2 us",
                  f"{key}_busy", 1, 2000)


def types():
    for where in WHERE:
        for kind in ("UC", "UD"):
            yield Row(f"ib_send_lat -c {kind}, {where}, median", f"ib_send_lat_{kind.lower()}_{where}", "ns", "-c RC",
                      f"ib_send_lat_rc_{where}", 1.1)
    for kind in ("UC", "UD"):
        yield Row(f"{kind}: SEND 8 B, half round trip, median", f"types_{kind.lower()}", "ns", "RC", "types_rc", 1.1)
    yield Row("RC by ibv_wr_* and ibv_start_poll, the same", "types_extended", "ns", "ibv_post_send, ibv_poll_cq",
              "types_rc", 1.1)


def thread_counts():
    yield Row("SEND 8 B, rate, 1 thread a side", "threads_rate_1", "M/s", "UCX tag rate, one thread", "ucx_rate")
    for n, aim in ((2, 0.8), (8, None), (32, 0.4)):
        yield Row(f"SEND 8 B, rate, {n} threads a side", f"threads_rate_{n}", "M/s", "1 thread a side",
                  "threads_rate_1", aim)
    for key, text, unit in (("write_rate", "WRITE 8 B to mapped memory, rate", "M/s"),
                            ("write_bw", "WRITE 64 KiB to mapped memory", "GB/s"),
                            ("read_bw", "READ 64 KiB from mapped memory", "GB/s")):
        yield Row(f"{text}, 1 thread", f"threads_{key}_1", unit)
        yield Row(f"{text}, 4 threads together", f"threads_{key}_4", unit, "1 thread", f"threads_{key}_1", 1)


def computing():
    whats = (("send", "a SEND until taken"), ("ack", "an owed ACK"), ("read", "a READ's answer"))
    for what, text in whats:
        for how, limit in (("polls", 2e6), ("waits", 2e6), ("computes", 25e6)):
            for timeout in (0, 14):
                yield Row(f"{text}, sender {how}, timeout {timeout}", f"computing_{what}_{how}_{timeout}", "ms",
                          "longest of 10", limit, 1)


def two_sided():
    yield Row("SEND 8 B, half round trip, quickest lap", "send_lat", "ns", "cache-line hand-over + 110 ns",
              "handover", 1, 110)
    yield Row("SEND 8 B, half round trip, quickest lap", "send_lat", "ns", "UCX tag, half round trip", "ucx_lat", 1)
    for key, how in (("send_rate", "one by one"), ("send_rate_list", "lists of 32")):
        yield Row(f"SEND 8 B, rate, {how}", key, "M/s", "UCX tag rate", "ucx_rate", 1)
    for n, text in LARGE[:2]:
        yield Row(f"SEND {text}", f"send_bw_{n}", "GB/s", "UCX tag bandwidth", f"ucx_bw_{n}", 1)
    yield Row("SEND 8 B, half round trip, get_cq_event", "event_lat", "ns", "eventfd ping-pong", "eventfd", 1.2)
    yield Row("SEND 8 B, rate, to get_cq_event", "event_rate", "M/s", "the same, polling", "send_rate")
    yield Row("SEND 8 B, half round trip, poll(channel fd)", "poll_lat", "ns", "eventfd ping-pong", "eventfd", 1.5)
    yield Row("SEND 8 B, half round trip, poll(channel fd)", "poll_lat", "ns", "the same handed on by a thread", "relayed")


def direct():
    for op in ("write", "read"):
        for tail, how in (("", ""), ("_list", ", each of 16 in a list")):
            yield Row(f"{op.upper()} 8 B{how}", f"private_{op}_8{tail}", "ns", f"process_vm_{op}v",
                      f"vm_{op}_8{tail}", 1.2)
    yield Row("WRITE 8 B until seen, half of a ping-pong", "private_pingpong", "ns", "process_vm_writev", "vm_write_8")
    for n, text in LARGE:
        for op in ("write", "read"):
            yield Row(f"{op.upper()} {text}", f"private_{op}_bw_{n}", "GB/s", f"process_vm_{op}v",
                      f"vm_{op}_bw_{n}", 0.95)


def polled():
    yield Row("WRITE 8 B until seen, half of a ping-pong", "polled_pingpong", "ns", "SEND 8 B, half round trip",
              "send_lat", 1.2)
    yield Row("WRITE 8 B until seen, half of a ping-pong", "polled_pingpong", "ns", "the same, target asleep",
              "private_pingpong", 1)
    yield Row("WRITE 8 B", "polled_write_8", "ns", "the same, target asleep", "private_write_8")
    yield Row("WRITE 8 B, each of 16 in a list", "polled_write_8_list", "ns", "the same, target asleep",
              "private_write_8_list", 1)


def shared():
    line = "cache-line hand-over + 60 ns"
    for op, text in (("write", "WRITE 8 B"), ("read", "READ 8 B"), ("fadd", "fetch-and-add"),
                     ("cas", "compare-and-swap")):
        yield Row(text, f"shared_{op}_8", "ns", line, "handover", 1, 60)
    for op in ("write", "read"):
        yield Row(f"{op.upper()} 8 B, each of 16 in a list", f"shared_{op}_8_list", "ns", line, "handover", 1, 60)
    yield Row("WRITE 8 B until seen, half of a ping-pong", "shared_pingpong", "ns", line, "handover", 1, 60)
    for n, text in LARGE:
        for op in ("write", "read"):
            yield Row(f"{op.upper()} {text}", f"shared_{op}_bw_{n}", "GB/s", "memcpy", f"memcpy_bw_{n}", 0.9)


def ring():
    yield Row("WRITE 8 B until seen, half of a ping-pong", "ring_pingpong", "ns", "UCX put, half of a ping-pong",
              "ucx_put", 1)
    yield Row("WRITE 8 B", "ring_write_8", "ns", "UCX put, there and back", ("ucx_put", 2), 1)
    # Its get and its compare-and-swap without shared memory wait for timers here; all are a message and an answer.
    for op, text, times in (("read", "READ 8 B", 2), ("fadd", "fetch-and-add", 1), ("cas", "compare-and-swap", 1)):
        yield Row(text, f"ring_{op}_8", "ns", "UCX fetch-and-add", "ucx_fadd", times)
    for op in ("write", "read"):
        yield Row(f"{op.upper()} 8 B, each of 16 in a list", f"ring_{op}_8_list", "ns", "cache-line hand-over",
                  "handover")
    for n, text in LARGE:
        for op in ("write", "read"):
            yield Row(f"{op.upper()} {text}", f"ring_{op}_bw_{n}", "GB/s", "memcpy", f"memcpy_bw_{n}")


def memory():
    for peers, key in ((0, "reg"), (16, "reg16")):
        for n in (4096 << 4 * i for i in range(6)):
            yield Row(f"register + deregister {size_text(n)}, {peers} peers", f"{key}_{n}", "ns",
                      "MADV_POPULATE_WRITE", f"populate_{n}", 1.3, 300 + 50 * peers)
    for peers, key in ((0, "relaxed"), (16, "relaxed16")):
        for n in (4096 << 4 * i for i in range(3)):
            yield Row(f"relaxed: register + deregister {size_text(n)}, {peers} peers", f"{key}_{n}", "ns",
                      "ibv_reg_mr + ibv_dereg_mr", f"{key.replace('relaxed', 'reg')}_{n}", 0.8)
    for n in (4096 << 4 * i for i in range(6)):
        yield Row(f"on demand: register + deregister {size_text(n)}", f"odp_{n}", "ns", "the same with 4 KiB",
                  "odp_4096", 1.2)
    yield Row("WRITE 8 B to oneself, others' regions being taken back", "self_write_revoking", "ns", "the same alone",
              "self_write", 1.3)
    # Constant: the way to one of a million is one line of memory long, which no cache has.
    yield Row("SEND 8 B from one of 1,000 regions", "lookup_1000", "ns", "from 1 region", "lookup_1", 1.2)
    yield Row("SEND 8 B from one of 1,000,000 regions", "lookup_1000000", "ns",
              "from 1 region, and a load of a cold line", ("lookup_1", 1, "cold_line"), 1.2)


def connecting():
    yield Row("a connection, until the first byte", "connect_one", "ns", "TCP: connect, accept, a byte", "connect_tcp", 1)
    for step, text in (("id", "rdma_create_id"), ("addr", "rdma_resolve_addr"), ("route", "rdma_resolve_route"),
                       ("qp", "rdma_create_qp, a receive"), ("connect", "rdma_connect until ESTABLISHED"),
                       ("byte", "the first byte after that"), ("down", "rdma_disconnect, destroying (not in the sum)")):
        yield Row(f"of that: {text}", f"connect_{step}", "ns")
    yield Row("each of 100 connections at once", "connect_many", "ns", "TCP, one after another", "connect_tcp", 1)


def between():
    for mtu in MTUS:
        of, key = f"MTU {mtu}", f"between_{mtu}"
        yield Row(f"{of}: SEND 8 B, half a round trip", f"{key}_lat", "ns", "a UDP datagram", f"{key}_udp", 1.5)
        for op, aim in (("WRITE", 1), ("SEND", 1), ("READ", None)):
            bw = f"{key}_{op.lower()}_bw"
            yield Row(f"{of}: {op} 1 MiB", bw, "GB/s", "UDP with GSO and GRO", f"{key}_gso_bw", aim and 0.7)
            yield Row(f"{of}: {op} 1 MiB", bw, "GB/s", "TCP", f"{key}_tcp_bw", aim)
        yield Row(f"{of}: SENDs of 64 B", f"{key}_send_rate", "M/s", "datagrams of 64 B, 60 a GSO send", f"{key}_gso_rate", 0.15)


TABLE = (("As users see it: perftest beside UCX", perftest), ("The same with --share-buffers", share_buffers),
         ("Open MPI", open_mpi),
         ("Our own loop, each message by itself", own_loop),
         ("Instructions", instruction_counts), ("Quiet peers", quiet), ("Types of queue pair and interfaces, in turns", types),
         ("One UD queue pair and many processes", peers), ("Threads on two CPUs", thread_counts),
         ("A target that computes", computing), ("Between two hosts", between), ("Connections by rdma_cm", connecting), ("Two-sided", two_sided),
         ("One-sided, private memory, target asleep", direct),
         ("One-sided, private memory, target polling", polled),
         ("One-sided, shareable memory, target asleep", shared),
         ("One-sided, over the ring only, target polling", ring), ("Memory", memory))
