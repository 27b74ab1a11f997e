#!/usr/bin/python3
"""rdma-core's ping-pongs over RC, UC, UD and XRC, server and client, with the options of everyday use."""
import re
import sys

import stranger

# Not -t -e together (rdma-core's libibverbs/examples/rc_pingpong.c): an event may come for a completion that was polled since the queue was armed, from any adapter,
# and with both options the program takes an empty queue then for an error ("poll CQ failed 2", which is ENOENT).
RC = ["", "-e", "-c", "-e -c", "-s 1", "-s 1000000 -n 200", "-m 256", "-r 2", "-j", "-j -c",
      "-N", "-N -c", "-N -e -c", "-N -s 1000000 -n 200", "-o", "-o -c", "-o -e", "-O", "-O -c", "-o -P", "-o -P -c", "-O -P -c",
      "-t", "-t -c -s 1"]
SRQ = ["", "-e", "-q 1", "-q 64"]
XSRQ = ["-n 1000", "-n 1000 -e", "-n 200 -s 100000"]
UC = ["", "-e", "-s 1", "-s 1000000 -n 200", "-m 256", "-r 2"]
# Datagrams: a ping-pong has one of them on its way at a time, so none is lost.
UD = ["", "-e", "-c", "-s 1", "-s 4096 -c", "-e -c"]
PROFILES = [("ibv_rc_pingpong", "-e"), ("ibv_rc_pingpong", "-s 1000000 -n 200"), ("ibv_srq_pingpong", "")]


class Row:
    def __init__(self, program, options, profile=None, link=None, devices=None):
        # programs that know only LIDs name no GID
        self.argv = [program, *([] if link else ["-g", "0"]), *options.split()]
        env = {"VERBENA_PROFILE": profile, "VERBENA_LINK": link, "VERBENA_DEVICES": devices}
        self.env = {name: value for name, value in env.items() if value}
        self.name = " ".join([f"{name}={value}" for name, value in self.env.items()] + self.argv)
        value = dict(zip(self.argv[1:], self.argv[2:]))
        self.mistakes = {"check-changed"} if "-c" in self.argv else set()
        self.size, self.iters = int(value.get("-s", 1024 if "_ud_" in program else 4096)), int(value.get("-n", 1000))

    def check(self, client, server):
        for who, r in (("client", client), ("server", server)):
            text = r.out + r.err
            if self.argv[0] == "ibv_xsrq_pingpong":  # it says no more
                if "success" not in text.splitlines():
                    return f"the {who} does not say success"
                continue
            m = re.search(r"(\d+) bytes in [\d.]+ seconds", text)
            if not m or not re.search(r"\d+ iters in [\d.]+ seconds", text):
                return f"the {who} printed no result"
            if self.argv[0] != "ibv_srq_pingpong" and int(m.group(1)) != self.size * self.iters * 2:
                return f"the {who} counted {m.group(1)} bytes, {self.size * self.iters * 2} were sent"
            if "invalid data" in text:
                return f"the {who} found wrong bytes"
        return None


MISSED = "this process never queried its own GID (ibv_query_gid)"
# Who was started without -g hears of it in its own log: options of both, more of the client's, what the server's
# log says and what the client's does (None: nothing, since that one did all right).
WITHOUT = [([], [], MISSED, "ends in INIT: it was never connected; " + MISSED),
           (["-g", "0"], ["-g", "-1"], "grh.dgid is zero: the peer did not send its GID", MISSED),
           ([], ["-g", "0"], "so it chose no index; " + MISSED, None)]


def without_gid(a):
    """ibv_rc_pingpong only: ibv_srq_pingpong's client reads for ever from a server that has gone."""
    failed = 0
    for options, more, at_server, at_client in WITHOUT:
        p = stranger.pair(a.build, ["ibv_rc_pingpong", *options], client_args=more, limit=30)
        for who, r, words in (("server", p.server, at_server), ("client", p.client, at_client)):
            lines = [t for t in r.err.splitlines() if stranger.sentence(t)]
            if r.status == 0 or len(lines) != (words is not None) or (words and words not in lines[0]):
                print(f"FAILED  {options}, client {more}: the {who} ended with {r.status} and logged {lines}, "
                      f"wanted \"{words}\"")
                failed += 1
    print(f"{len(WITHOUT)} pairs without -g, {failed} failed", flush=True)
    return not failed


def main():
    a = stranger.arguments()
    stranger.need("ibv_rc_pingpong", "ibv_srq_pingpong", "ibv_xsrq_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong")
    table = [Row("ibv_rc_pingpong", o) for o in RC] + [Row("ibv_srq_pingpong", o) for o in SRQ]
    table += [Row("ibv_xsrq_pingpong", o) for o in XSRQ]
    table += [Row("ibv_uc_pingpong", o) for o in UC] + [Row("ibv_ud_pingpong", o) for o in UD]
    table += [Row(*p, profile) for profile in ("strict", "rxe") for p in PROFILES]
    table += [Row("ibv_rc_pingpong", o, link="infiniband") for o in ("", "-e", "-s 1000000 -n 200", "-g 0")]
    table += [Row(f"ibv_{kind}_pingpong", o, link="infiniband")
              for kind, options in (("srq", [""]), ("uc", ["", "-e", "-g 0"]), ("ud", ["", "-e -c", "-g 0"]), ("xsrq", XSRQ[:2]))
              for o in options]
    table += [Row("ibv_rc_pingpong", "-d verbena1", devices="2")]
    if not a.rows and not a.check and not without_gid(a):
        sys.exit(1)
    if a.mode == "both":
        table = [r for r in table for _ in range(2)]  # neighbours take turns: each row runs both ways
    stranger.rows(a, table, lambda row, mode: stranger.pair(a.build, row.argv, mode=mode, env=row.env, check=row.check))


if __name__ == "__main__":
    main()
