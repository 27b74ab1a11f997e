#!/usr/bin/python3
"""Applications over RDMA: fio's engine, uDAPL's tests, an iSER target with its initiator, and QEMU's live migration.  Rows whose
program is absent say so.  --between: the ends are two hosts.  With VERBENA_SOAK=1 uDAPL's tests run whole.

tgtd serves a block device by iSER, and wants huge pages for its buffers; libiscsi's tools read it.  The two QEMUs have no
disk: the BIOS runs, and the one hands its memory to the other."""
import contextlib
import os
import re
import socket
import sys
import tempfile

import hosts
import stranger

SOAK = bool(os.environ.get("VERBENA_SOAK"))
IQN, INITIATOR = "iqn.2026-01.test:disk", "iqn.2026-01.test:reader"
ISER_PORT = 3260  # the usual one; the test has a network of its own
DTEST_PORT = 15828  # built in: there the server says to its client how it is reached
DTEST = ["dtest -b 4096", *(["dtest", "dtestx", "dtestcm -c 200"] if SOAK else [])]


class Ends:
    """Where the two ends run, and how one is called by the other.  two: the network of two hosts, None: both are on this one."""

    def __init__(self, two=None):
        self.nets = tuple(two.nets[:2]) if two else (None, None)
        self.addresses = [two.address(i) if two else "127.0.0.1" for i in range(2)]
        self.nic = hosts.NIC if two else "lo"
        self.env = {"VERBENA_NETDEV": hosts.NIC} if two else {}


class Row:
    def __init__(self, name, *programs):
        self.name = name
        absent = [p for p in programs if not stranger.there(p)]
        self.lacks = f"{', '.join(absent)} not installed" if absent else None


class Fio(Row):
    def __init__(self, verb):
        super().__init__(f"fio --ioengine=rdma --verb={verb}", "fio")
        self.verb = verb

    def run(self, a, ends, mode):
        common = ["fio", "--ioengine=rdma", "--thread", "--port={port}", "--bs=64k", "--size=100m", "--iodepth=16"]
        server = [*common, "--name=in", "--rw=read"]
        client = [*common, "--name=out", "--rw=write", f"--verb={self.verb}", f"--hostname={ends.addresses[0]}"]
        return stranger.pair(a.build, server, port_option=None, host=None, mode=mode, env=ends.env, other=client, nets=ends.nets,
                             ready=stranger.rdma_listening, check=self.check)

    @staticmethod
    def check(client, server):
        del server
        m = re.search(r"WRITE: .*io=([0-9.]+MiB)", client.out)
        return None if m and m.group(1) == "100MiB" else f"{m.group(1) if m else 'nothing'} was written, not 100MiB"


class Dapl(Row):
    def __init__(self, line):
        super().__init__(line, line.split()[0])
        self.line = line.split()

    def run(self, a, ends, mode):
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as f:
            f.write(f'cma u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 "{ends.nic} 0" ""\n')
            f.flush()
            return stranger.pair(a.build, [*self.line, "-P", "cma"], port_option=None, host=ends.addresses[0], client_args=["-h"],
                                 mode=mode, env={**ends.env, "DAT_OVERRIDE": f.name}, nets=ends.nets,
                                 ready=lambda port, pid: stranger.listening(DTEST_PORT, pid), check=self.check)

    @staticmethod
    def check(client, server):
        for who, r in (("client", client), ("server", server)):
            if "PASSED" not in r.out + r.err and "Complete" not in r.out + r.err:
                return f"the {who} does not say that it passed"
        return None


class Iser(Row):
    def __init__(self):
        super().__init__("iscsi-perf of tgtd over iSER", "tgtd", "tgtadm", "iscsi-perf")

    def run(self, a, ends, mode):
        with contextlib.ExitStack() as stack:
            if not stack.enter_context(stranger.huge_pages(66)):
                raise OSError("no huge pages here, which tgtd wants")
            disk = stack.enter_context(tempfile.NamedTemporaryFile())
            disk.truncate(32 << 20)
            address = ends.addresses[0]
            control = str(os.getpid() % 30000)
            server, _ = stack.enter_context(stranger.server(
                a.build, ["tgtd", "-f", "-C", control, "--iscsi", f"portal={address}:{stranger.free_port()}", "--iser",
                          "pool_sz_mb=64"], stranger.rdma_listening, mode=mode, env=ends.env, net=ends.nets[0]))
            for words in (["target", "--op", "new", "--tid", "1", "-T", IQN],
                          ["logicalunit", "--op", "new", "--tid", "1", "--lun", "1", "-b", disk.name],
                          ["target", "--op", "bind", "--tid", "1", "-I", "ALL"],
                          ["target", "--op", "bind", "--tid", "1", "-Q", INITIATOR]):
                r = stranger.run(a.build, ["tgtadm", "-C", control, "--lld", "iser", "--mode", *words], mode=mode)
                if r.status:
                    return stranger.Pair(server.result(), r, f"tgtadm ended with status {r.status}")
            r = stranger.run(a.build, ["iscsi-perf", "-i", INITIATOR, "-t", "1", "-m", "8", "-b", "64", f"iser://{address}:{ISER_PORT}/{IQN}/1"],
                             mode=mode, env=ends.env, net=ends.nets[1])
            well = r.status == 0 and "finished" in r.out
            return stranger.Pair(server.result(), r, None if well else f"iscsi-perf ended with status {r.status}")


class Monitor:
    """A QEMU's monitor, a socket."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.text = ""
        self.until()

    def until(self):
        begin = len(self.text)
        while not self.text[begin:].endswith("(qemu) "):
            data = self.socket.recv(1 << 16)
            if not data:
                break
            self.text += data.decode(errors="replace")
        return self.text[begin:]

    def say(self, line):
        self.socket.send((line + "\n").encode())
        return self.until()


class Qemu(Row):
    def __init__(self, pin):
        super().__init__(f"qemu-system-x86_64: migration over RDMA{', all memory pinned' if pin else ''}", "qemu-system-x86_64")
        self.pin = pin
        self.lacks = stranger.GUARD_STOPS if stranger.guarded() else self.lacks
        self.mistakes = {"check-changed"}  # the machine goes on, and pages that it writes to are sent again

    def run(self, a, ends, mode):
        with contextlib.ExitStack() as stack:
            d = stack.enter_context(tempfile.TemporaryDirectory())
            words = ["qemu-system-x86_64", "-m", "64", "-display", "none", "-serial", "null"]

            def start(name, net, *more):
                return stack.enter_context(stranger.server(
                    a.build, [*words, "-monitor", f"unix:{d}/{name},server,nowait", *more],
                    lambda port, pid: os.path.exists(f"{d}/{name}"), mode=mode, env=ends.env, net=net))

            to, port = start("to", ends.nets[0], "-incoming", f"rdma:{ends.addresses[0]}:{{port}}")
            from_, _ = start("from", ends.nets[1])
            target, source = Monitor(f"{d}/to"), Monitor(f"{d}/from")
            if self.pin:
                for m in target, source:
                    m.say("migrate_set_capability rdma-pin-all on")
            source.say(f"migrate rdma:{ends.addresses[0]}:{port}")  # returns when it is done
            state = source.say("info migrate")
            running = target.say("info status")
            well = "completed" in state and "VM status: running" in running
            return stranger.Pair(to.result(), from_.result(), None if well else f"the migration ends so: {state} {running}")


def one(row, a, ends, mode):
    try:
        return row.run(a, ends, mode)
    except (OSError, RuntimeError) as e:  # an end died while it was spoken to, or never listened
        nothing = stranger.Result([], None, "", "", 0)
        return stranger.Pair(nothing, nothing, str(e))


def main():
    between = "--between" in sys.argv
    if between:
        sys.argv.remove("--between")
    hosts.alone()
    a = stranger.arguments()
    table = [Fio(v) for v in ("write", "read", "send")] + [Dapl(t) for t in DTEST] + [Iser(), Qemu(False), Qemu(True)]
    with hosts.Hosts() if between else contextlib.nullcontext() as two:
        ends = Ends(two)
        stranger.rows(a, table, lambda row, mode: one(row, a, ends, mode))


if __name__ == "__main__":
    main()
