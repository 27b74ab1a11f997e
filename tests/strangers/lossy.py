#!/usr/bin/python3
"""rdma-core's ping-pongs and Debian's perftest over the lossy wire (src/wire/lossy.h), which only the variant of the
library with fault points has: what is lost is sent again where the transport does so, and nothing else is to be seen of
it.  Where everything is lost, nothing gets through, and the sentence says why."""
import re
import sys

import perftest
import pingpong
import stranger

MTU = 4096
ENV = {"VERBENA_LOG": "stderr", "VERBENA_LOG_LEVEL": "debug"}
FATES = re.compile(r"lossy wire from process \d+: (\d+) packets passed, (\d+) were lost, (\d+) came twice, (\d+) came late")


TRIES = 3
LEFT = re.compile(r"IBV_WC_RETRY_EXC_ERR: .* its process \d+ has disconnected")


def last_ack_lost(pair):
    """What no wire that loses can spare these programs: who has received everything leaves, and its last ACK does not
    arrive.  At a loss of 3 % this is one run in eight, and beside other work one in four."""
    client, server = pair.client, pair.server
    return (client.status == 0 and LEFT.search(server.err)) or (server.status == 0 and LEFT.search(client.err))


class Row:
    """A row of another table over a wire with these settings."""

    def __init__(self, row, settings):
        self.row, self.argv, self.settings = row, row.argv, settings
        self.name = f"VERBENA_WIRE=lossy:{settings} {row.name}"
        self.lacks = getattr(row, "lacks", None)
        self.env = {**ENV, "VERBENA_WIRE": f"lossy:{settings}"}

    def check(self, client, server):
        return self.row.check(client, server) or self.check_wire(client, server)

    def judge(self, pair):
        return pair

    def check_wire(self, client, server):
        """All data went through it, and of thousands of packets some had each fate."""
        size = self.row.sizes[0] if hasattr(self.row, "sizes") else self.row.size
        least = self.row.iters * -(-size // MTU)
        sums = [0, 0, 0, 0]
        for r in (client, server):
            for m in FATES.finditer(r.err):
                sums = [a + int(b) for a, b in zip(sums, m.groups())]
        print("        {} packets passed, {} were lost, {} came twice, {} came late".format(*sums))
        if sum(sums) < least:
            return f"the wire saw fewer than the {least} packets that the data takes"
        spared = [f"{fate}=0" in self.settings.split(",") for fate in ("loss", "dup", "late")]
        if not sums[0] or any(spare == bool(n) for spare, n in zip(spared, sums[1:])):
            return "the wire did not lose, repeat and delay packets as it was told"
        return None


class Silent(Row):
    """Nothing gets through: the client's retries run out, and the server waits for what never comes."""

    def judge(self, pair):
        if pair.client.status != 1:
            pair.why = f"the client ended with {pair.client.status}"
        elif "retries exceeded" not in pair.client.err and "retry counter exceeded" not in pair.client.err:
            pair.why = "the client does not say that its retries ran out"
        else:
            pair.why = None
        return pair


TABLE = [(pingpong.Row("ibv_rc_pingpong", ""), "seed=1"),
         (pingpong.Row("ibv_rc_pingpong", "-e"), "seed=2"),
         (pingpong.Row("ibv_rc_pingpong", "-c -s 1000000 -n 20"), "seed=3"),
         (pingpong.Row("ibv_rc_pingpong", "-s 1"), "seed=4"),
         (pingpong.Row("ibv_rc_pingpong", "-c -r 2"), "seed=5,loss=3,dup=3,late=3"),
         (perftest.Row("ib_send_bw -n 2000"), "seed=6"),
         (perftest.Row("ib_send_bw -n 5000 -s 8"), "seed=7"),
         (perftest.Row("ib_send_bw -b -n 1000"), "seed=8"),
         # Were requests carried out past the wire, it would have nothing to lose.
         (perftest.Row("ib_write_bw -n 1000"), "seed=9"),
         (perftest.Row("ib_read_bw -n 1000"), "seed=10"),
         (pingpong.Row("ibv_xsrq_pingpong", "-n 200"), "seed=11"),
         (perftest.Row("ib_send_bw -c XRC -n 1000"), "seed=12"),
         (perftest.Row("ib_read_bw -c XRC -n 1000"), "seed=13"),
         # What is lost stays lost, and only the receiver of a SEND would wait for it.
         (perftest.Row("ib_write_bw -c UC -n 1000"), "seed=14"),
         (perftest.Row("ib_send_bw -c UD -n 2000"), "seed=16,loss=0,late=5")]
# Which library, what it is asked for, and what it says instead.
REFUSED = [("path", "lossy:seed=1", "this build has no such wire; auto is used"),
           ("faults", "smoke", "this build has no such wire; auto is used"),
           ("faults", "lossy:loss=101", "the wire lossy has no such settings; auto is used"),
           ("faults", "lossy:loss=50,dup=51", "the wire lossy has no such settings; auto is used"),
           ("faults", "lossy:seed", "the wire lossy has no such settings; auto is used"),
           ("faults", "shm:fast", "the wire shm has no such settings; auto is used"),
           ("path", "shm", None),
           ("faults", "lossy:seed=0x10,late=0", None)]


def refused(a):
    """A name or a setting that is none is said once, and the device opens all the same."""
    failed = 0
    for mode, setting, words in REFUSED:
        r = stranger.run(a.build, ["ibv_devinfo"], mode, {"VERBENA_LOG": "stderr", "VERBENA_WIRE": setting})
        lines = [t for t in r.err.splitlines() if "VERBENA_WIRE" in t]
        if r.status or len(lines) != (words is not None) or (words and words not in lines[0]):
            print(f"FAILED  VERBENA_WIRE={setting} [{mode}]: status {r.status}, logged {lines}, wanted \"{words}\"")
            failed += 1
    print(f"{len(REFUSED)} settings, {failed} failed", flush=True)
    return not failed


def main():
    a = stranger.arguments()
    a.mode = "faults"
    stranger.need("ibv_devinfo", "ibv_rc_pingpong", "ibv_xsrq_pingpong", "ib_send_bw", "ib_write_bw", "ib_read_bw")
    if not a.rows and not refused(a):
        sys.exit(1)

    def run(row, mode):
        for _ in range(TRIES):
            p = stranger.pair(a.build, row.argv, mode=mode, env=row.env, limit=300, check=row.check)
            if not last_ack_lost(p):
                break
            print("        again: the last ACK was lost, and whoever should have repeated it has left")
        return row.judge(p)

    silent = Silent(pingpong.Row("ibv_rc_pingpong", "-n 10"), "seed=1,loss=100,dup=0,late=0")
    stranger.rows(a, [*(Row(*t) for t in TABLE), silent], run)


if __name__ == "__main__":
    main()
