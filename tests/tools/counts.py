#!/usr/bin/python3
"""verbena list, qp, top and bundle, of a program whose traffic is known: stopped, with a queue pair that has ended, with
one that failed; and processes that end while they are looked at.   counts.py BUILD HELPERS"""
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "strangers"))
import stranger

build, helpers = (os.path.realpath(p) for p in sys.argv[1:3])
verbena = os.path.join(build, "verbena")
env = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "LD_PRELOAD", "VERBENA_LOG")}
bad = checks = 0
running = []


def check(what, good, *seen):
    global bad, checks
    checks += 1
    if not good:
        bad += 1
        print(f"FAIL: {what}:", *seen)


def run(*words, status=0):
    r = subprocess.run([verbena, *map(str, words)], capture_output=True, text=True, env=env, timeout=60, check=False)
    check(f"{words}: exit status", r.returncode == status, r.returncode, r.stdout, r.stderr)
    return r.stdout + r.stderr


class Program:
    def __init__(self, *words):
        self.process = subprocess.Popen([verbena, "run", "--log=off", "--", os.path.join(helpers, "tools-traffic"), *words],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        running.append(self.process)
        self.qps = self.process.stdout.readline().split()
        self.pid = self.process.pid

    def end(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)


def of(pid):
    return [p for p in json.loads(run("list", "--json")) if p["pid"] == pid][0]


# How many messages of each kind the pair carries, what they bring, and how many packets of 1,024 bytes that are more
SENT, BYTES_SENT, BYTES_READ, FURTHER = 3 + 1 + 2 + 1 + 1, 3 * 100 + 5000 + 2 * 64 + 10, 4096, 4


def look(p):
    """Requests that were placed directly are counted at one end, others at both."""
    a, b = (q for q in json.loads(run("qp", "--json", p.pid))["queue_pairs"])
    if a["qpn"] != p.qps[0]:
        a, b = b, a
    check("numbers", [a["qpn"], b["qpn"]] == p.qps, a, b)
    check("sent", (a["messages_sent"], a["bytes_sent"], a["bytes_received"]) == (SENT, BYTES_SENT, BYTES_READ), a)
    check("a receives nothing", a["messages_received"] == 0, a)
    check("packets", a["further_packets_sent"] == FURTHER and a["further_packets_received"] == 3, a)
    writes, reads = a["placed_writes"], a["placed_reads"]
    check("placed and not", writes + b["write_requests_received"] == 2 and reads + b["read_requests_received"] == 1, a, b)
    check("placed bytes", a["placed_write_bytes"] == 64 * writes and a["placed_read_bytes"] == 4096 * reads, a)
    check("received", b["messages_received"] == 3 + 1 + 1 + (2 - writes) + (1 - reads), b)
    check("bytes received", b["bytes_received"] == 5310 + 64 * (2 - writes), b)
    check("RNR NAKs", a["rnr_naks_received"] == b["rnr_naks_sent"] >= 1, a, b)
    check("sent again", a["retransmitted_packets"] >= 1, a)
    check("the peer", (a["peer"]["qpn"], a["peer"]["pid"]) == (p.qps[1], p.pid), a)
    check("the peer's name", a["peer"]["program"] == "tools-traffic", a)
    check("the peer's placed bytes", b["peer"]["placed_write_bytes"] == 64 * writes, b)
    check("type, state, device", (a["type"], a["state"], a["device"]) == ("RC", "RTS", "verbena0"), a)
    text = run("qp", p.pid)
    check("text", f"process {p.pid} (tools-traffic): 2 queue pairs\n" in text, text)
    check("text of a queue pair", f"QP {p.qps[0]}  RC  RTS  device verbena0  peer QP {p.qps[1]} of process {p.pid}" in text, text)
    check("text of what it sent", f"sent      {SENT} messages, 5,438 bytes" in text, text)
    check("text of PSNs", "; next PSN 0x0003" in text, text)
    if a.get("send_queue"):  # the kernel lets us read the process's memory
        check("queues", a["send_queue"] == {"size": 16, "outstanding": 0, "unsent": 0} and
              b["receive_queue"] == {"size": 16, "posted": 0}, a, b)
        check("PSNs of sends", a["sq_psn"] == a["sq_psn_unacknowledged"] == b["rq_psn"] > 1000, a, b)
        check("text of queues", "send queue: 0 of 16 not complete" in text and "receive queue: 0 of 16 posted" in text, text)
    return a, b


def look_at_list(p, a, b):
    o = of(p.pid)
    check("states", o["queue_pairs_by_state"] == {"RTS": 2} and o["queue_pairs"] == 2, o)
    check("regions", (o["regions"], o["region_bytes"], o["peers"]) == (2, 65536 + 4096, 1), o)
    check("sums", all(o[k] == a[k] + b[k] for k in ("messages_sent", "bytes_received", "retransmitted_packets")), o)
    check("devices", o["devices"][0]["messages_sent"] == o["messages_sent"], o)
    text = run("list")
    line = [x for x in text.splitlines() if x.split()[:1] == [str(p.pid)]]
    check("text of list", line and re.search("tools-traffic +verbena0  2 RTS ", line[0]) and " 68.0 KiB " in line[0], text)


def metrics(text):
    """The samples, {name: {labels: value}}; what promtool check metrics demands is demanded here."""
    found, said, last = {}, {}, None
    for line in text.splitlines():
        if line.startswith("# "):
            _, what, name, rest = line.split(" ", 3)
            check("once, HELP before TYPE", said.get(name, "") == ("" if what == "HELP" else "HELP"), line)
            said[name] = said.get(name, "") + what
            if what == "TYPE":
                check("counters end in _total", (rest == "counter") == name.endswith("_total"), line)
            last = name
            found.setdefault(name, {})
            continue
        m = re.fullmatch(r'([a-z_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)+)\} ([0-9]+)', line)
        check("a sample", m and m[1] == last and m[1].startswith("verbena_"), line)
        if m:
            check("each once", m[2] not in found[m[1]], line)
            found[m[1]][m[2]] = int(m[3])
    check("units", not [n for n in found if re.search(r"_(kb|kib|ms|us|words)(_|$)", n)], *found)
    check("ends with a newline", text.endswith("\n"))
    return found


def look_at_top(p):
    text = run("top", "-b", "-n", 2, "--interval=0.05")
    check("two frames", len(re.findall(r"^verbena top - .*, [0-9]+ process(es)?, rates over [0-9.]+ s$", text, re.M)) == 2, text)
    check("a row of top", len(re.findall(rf"^ *{p.pid}  tools-traffic +2 +1 +69\.6k +0 +0 +0 +0 +0$", text, re.M)) == 2, text)
    check("one frame, without a terminal", run("top", "--frames=1", "-d", "0.01").count("verbena top - ") == 1)
    check("an interval", "seconds from 0.01 to 3600" in run("top", "-n", 1, "-d", "0", status=125))
    # Rates of a process that sends: the sums must have risen in between.
    s = subprocess.Popen([verbena, "run", "--log=off", "--", os.path.join(helpers, "tools-traffic"), "busy"], env=env,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    running.append(s)
    s.stdout.readline()
    for _ in range(100):
        m = re.search(rf"^ *{s.pid}  tools-traffic +2 +1 +\S+ +(\S+) +(\S+) +(\S+) ", run("top", "-n", 1, "-d", 0.1), re.M)
        if m and "0" not in m.groups():
            break
    check("rates", m and "0" not in m.groups(), m and m.group())
    s.stdin.close()
    s.wait(timeout=60)


def look_at_terminal(p):
    """On a terminal it draws, and ends with q."""
    pid, fd = pty.fork()
    if not pid:
        os.execve(verbena, [verbena, "top", "--interval=30"], dict(env, TERM="xterm", LINES="24", COLUMNS="100"))
    seen = b""
    while b"tools-traffic" not in seen or str(p.pid).encode() not in seen:
        try:
            more = os.read(fd, 4096)
        except OSError:
            break
        if not more:
            break
        seen += more
    os.write(fd, b"q")
    while True:
        try:
            if not os.read(fd, 4096):
                break
        except OSError:
            break
    check("top on a terminal", b"\x1b[" in seen and b"tools-traffic" in seen, seen)
    check("q ends it", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0)
    pid, fd = pty.fork()
    if not pid:
        os.execve(verbena, [verbena, "top"], dict(env, TERM="no-such-terminal"))
    said = b""
    try:
        while more := os.read(fd, 4096):
            said += more
    except OSError:
        pass
    check("an unknown terminal", b"verbena top --batch" in said and os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 125, said)


def look_at_bundle(tmp):
    log = os.path.join(tmp, "log")
    with open(log, "w", encoding="utf-8") as f:
        f.write("".join(f"line {i}\n" for i in range(2000)))
    secret = dict(env, VERBENA_LOG=log, PASSWORD="hidden-word")
    s = subprocess.Popen([verbena, "run", "--", os.path.join(helpers, "tools-traffic"), "fails"], env=secret,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    running.append(s)
    s.stdout.readline()
    path = os.path.join(tmp, "report")
    check("the name", run("bundle", "-o", path, s.pid) == path + "\n")
    check("its mode", os.stat(path).st_mode & 0o7777 == 0o600, oct(os.stat(path).st_mode))
    with open(path, encoding="utf-8") as f:
        text = f.read()
    check("the parts", all(f"\n==== {x}" in text for x in (
        f"verbena explain {s.pid}\n", f"verbena qp {s.pid}\n", f"verbena mr {s.pid}\n", "verbena list\n", "the last 1,000 lines",
        "versions\nverbena ", "VERBENA_* of the environment\nVERBENA_", "limits\n",
        "network\ninterface lo, index 1: ")), text)
    check("the network", "127.0.0.1" in text and f"/proc/{s.pid}/net/snmp:\nIp: " in text and "(path_mtu 4096)" in text, text)
    check("what they say", "IBV_WC_REM_ACCESS_ERR" in text and "2 queue pairs" in text and "2 memory regions" in text, text)
    lines = text.split("lines of the log\n")[1].split("\n\n====")[0].split("\n")
    check("1,000 lines of the log", len(lines) == 1000 and "IBV_WC_REM_ACCESS_ERR" in lines[-1], len(lines), lines[-3:])
    check("nothing else of the environment", "hidden-word" not in text and "PASSWORD" not in text and "PATH=" not in text)
    keys = [r[k] for r in json.loads(run("mr", "--json", s.pid))["regions"] for k in ("lkey", "rkey")]
    check("keys", len(keys) == 4 and not [k for k in keys if k in text or k[2:] in text], keys, text)
    check("asterisks", "R_Key 0x********" in text, text)
    check("not overwritten", "is not overwritten" in run("bundle", "-o", path, s.pid, status=125))
    run("bundle", "--keys", "-o", path + "2", s.pid)
    with open(path + "2", encoding="utf-8") as f:
        text = f.read()
    check("with keys", all(k in text for k in keys), keys, text)
    check("no folder", "cannot be created: No such file" in run("bundle", "-o", tmp + "/none/x", s.pid, status=125))
    check("no process to report on", "there is no process 4194304" in run("bundle", "-o", path + "3", 4194304, status=125))
    check("and no file", not os.path.exists(path + "3"))
    s.stdin.close()
    s.wait(timeout=60)


VIEW = r"""
import os, sys
port = "/sys/class/infiniband/verbena0/ports/1/"
names = {d: sorted(os.listdir(port + d)) for d in ("counters", "hw_counters")}
for d in names:
    for name in names[d]:
        with open(port + d + "/" + name) as f:
            assert f.read() == "0\n", name
assert {"port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets"} <= set(names["counters"]), names
assert {"out_of_buffer", "packet_seq_err", "local_ack_timeout_err", "duplicate_request"} <= set(names["hw_counters"]), names  # mlx5's
assert {"sent_pkts", "rcvd_pkts", "rcvd_rnr_err", "rdma_sends", "rdma_recvs"} <= set(names["hw_counters"]), names  # rxe's
assert len(set(names["hw_counters"])) == len(names["hw_counters"]), names
"""


def look_at_view():
    """Units as Linux has them: port_*_data in words of 4 bytes.  perftest keeps the files open, and reads them twice."""
    r = subprocess.run([verbena, "run", "--", "/usr/bin/python3", "-c", VIEW], capture_output=True, text=True, env=env, timeout=60,
                       check=False)
    check("files of counters", r.returncode == 0, r)
    if not shutil.which("ib_send_bw"):
        print("perftest is not installed: its -W is not tried")
        return
    words = [verbena, "run", "--log=off", "--", "ib_send_bw", "-s", "4096", "-n", "1000", "-m", "1024", "-p", "18999", "-W"]
    names = "counters/port_rcv_data,counters/port_rcv_packets,hw_counters/rdma_recvs,hw_counters/rcvd_pkts"
    server = subprocess.Popen([*words, names], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    running.append(server)
    check("perftest's server listens", stranger.await_listening(server, 18999), server.poll())
    names = "counters/port_xmit_data,counters/port_xmit_packets,hw_counters/rdma_sends,hw_counters/packet_seq_err"
    r = subprocess.run([*words, names, "localhost"], capture_output=True, text=True, env=env, timeout=60, check=False)
    for what in "counters/port_xmit_data=1024000", "counters/port_xmit_packets=4000", "rdma_sends=1000", "packet_seq_err=0":
        check("perftest's client", what + "\n" in r.stdout, what, r)
    text = server.communicate(timeout=60)[0]
    for what in "counters/port_rcv_data=1024000", "counters/port_rcv_packets=4000", "rdma_recvs=1000", "rcvd_pkts=4000":
        check("perftest's server", what + "\n" in text, what, text)


def main():
    p = Program()
    a, b = look(p)
    look_at_list(p, a, b)
    os.kill(p.pid, signal.SIGSTOP)
    look(p)
    found = metrics(run("list", "--metrics"))
    os.kill(p.pid, signal.SIGCONT)
    labels = f'pid="{p.pid}",program="tools-traffic",device="verbena0"'
    check("metrics", found["verbena_messages_sent_total"].get(labels) == SENT, found["verbena_messages_sent_total"])
    check("gauges", found["verbena_queue_pairs"].get(labels + ',state="RTS"') == 2, found["verbena_queue_pairs"])
    check("memory", found["verbena_memory_region_bytes"].get(labels) == 65536 + 4096, found)
    check("rare ones", found["verbena_rnr_naks_sent_total"].get(labels) == b["rnr_naks_sent"], found)
    look_at_view()
    look_at_top(p)
    look_at_terminal(p)
    with tempfile.TemporaryDirectory() as tmp:
        look_at_bundle(tmp)
    before = of(p.pid)
    q = Program("ends")
    o = of(q.pid)
    check("destroyed ones count", o["messages_sent"] == SENT + 3 and o["bytes_sent"] == BYTES_SENT + 300, o)
    check("and are gone", o["queue_pairs"] == 2 and len(json.loads(run("qp", "--json", q.pid))["queue_pairs"]) == 2, o)
    check("each its own", of(p.pid) == before, of(p.pid), before)
    f = Program("fails")
    o = of(f.pid)
    check("the error state", o["queue_pairs_by_state"] == {"ERR": 2}, o)
    check("why", (o["remote_access_errors"], o["remote_accesses_refused"], o["send_errors"]) == (1, 1, 1), o)
    check("two formats", "give one of them" in run("list", "--json", "--metrics", status=125))
    check("no process", "there is no process 4194304" in run("qp", 4194304, status=125))
    if not os.geteuid():  # a name that has to be escaped, and a process that others may not look at
        copy = os.path.join(os.environ.get("TMPDIR", "/tmp"), f'a"b\\{os.getpid()}')
        os.symlink(os.path.join(helpers, "tools-traffic"), copy)
        try:
            s = subprocess.Popen([verbena, "run", "--log=off", "--", copy], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 text=True, env=env)
            running.append(s)
            s.stdout.readline()
        finally:
            os.unlink(copy)
        metrics(run("list", "--metrics"))
        r = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", verbena, "qp", str(p.pid)],
                           capture_output=True, text=True, env=env, timeout=60, check=False)
        check("another user's", r.returncode in (125, 126, 127) and "QP 0x" not in r.stdout, r)
        s.stdin.close()
    for _ in range(20):  # they end while they are looked at
        e = subprocess.Popen([verbena, "run", "--log=off", "--", os.path.join(helpers, "tools-traffic")],
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=env)
        while e.poll() is None:
            run("list")
            metrics(run("list", "--metrics"))
    for x in (p, q, f):
        x.end()
    check("nothing is left", p.pid not in [x["pid"] for x in json.loads(run("list", "--json"))])


try:
    main()
finally:
    for child in running:
        if child.poll() is None:
            child.kill()
print(f"counts: {checks} checks, {bad} failed")
sys.exit(bad > 0)
