#!/usr/bin/python3
"""ucx_perftest over datagrams, and over RC that is set up through them: messages with tags, put, get and atomics.

UCX_TLS leaves UCX nothing but the verbs: were they not usable, it would end with a word about that.  It finds devices by
their files, so it wants `verbena run`.  Some are built with MPI, and are ranks of it unless their input is a terminal."""
import os
import re

import stranger

TLS = ["ud_verbs", "rc_verbs,ud_verbs"]
TESTS = ["tag_lat -s 8 -n 5000", "tag_lat -s 100000 -n 200", "tag_bw -s 8 -n 20000", "tag_bw -s 65536 -n 1000",
         "ucp_put_lat -s 8 -n 2000", "ucp_put_bw -s 65536 -n 1000", "ucp_get -s 8 -n 1000", "ucp_get -s 65536 -n 200",
         "ucp_add -s 8 -n 1000", "ucp_fadd -s 4 -n 1000", "ucp_swap -s 8 -n 1000", "ucp_cswap -s 8 -n 1000"]
SIZES = {8: 2000, 4096: 1000, 65536: 300, 1 << 20: 50}
if os.environ.get("VERBENA_SOAK"):
    TLS += ["ud_verbs,self", "rc_verbs,ud_verbs,self"]
    TESTS += [f"{test} -s {size} -n {n}" for test in ("tag_lat", "tag_bw", "ucp_put_lat", "ucp_put_bw", "ucp_get") for size, n in SIZES.items()]
    TESTS += [f"{test} -s {size} -n 1000" for test in ("ucp_add", "ucp_fadd", "ucp_swap", "ucp_cswap") for size in (4, 8)]
else:
    TESTS += [f"{test} -s {1 << 20} -n 20" for test in ("tag_bw", "ucp_put_lat", "ucp_get")]
FINAL = re.compile(r"^Final: +(\d+) ", re.M)


class Row:
    def __init__(self, tls, test, more):
        self.argv = ["ucx_perftest", "-w", "10", "-t", *test.split()]
        self.env = {"UCX_TLS": tls, "UCX_NET_DEVICES": "verbena0:1", "UCX_LOG_LEVEL": "warn", "VERBENA_LOG": "stderr", **more}
        self.name = f"UCX_TLS={tls} ucx_perftest {test}"
        self.iters = int(test.split("-n ")[1])
        # UCX over datagrams heeds the peer's acknowledgement only, and this test writes to the last byte before each put.
        self.lacks = stranger.GUARD_STOPS if stranger.guarded() and tls.startswith("rc") else None
        self.mistakes = {"check-changed"} if "ud" in tls or "put_bw" in test else set()

    def check(self, client, server):
        m = FINAL.search(client.out)
        if not m or int(m.group(1)) != self.iters:
            return f"the client's last line tells of {m.group(1) if m else 'no'} iterations, not {self.iters}"
        for who, r in (("client", client), ("server", server)):
            m = re.search(r"^.*(ERROR|WARN | verbena .*\[\d+\]: ).*$", r.out + r.err, re.M)
            if m:
                return f"the {who} says: {m.group(0)}"
        return None


def weak_fences(a):
    """UCX has strong fences over rc_verbs on mlx5 only.  Releases that use them by default have a setting for weak ones."""
    there = "UCX_FENCE_MODE" in stranger.run(a.build, ["ucx_info", "-c"]).out
    return {"UCX_FENCE_MODE": "weak"} if there else {}


def main():
    a = stranger.arguments()
    a.mode = "run"
    stranger.need("ucx_perftest", "ucx_info")
    more = weak_fences(a)
    stranger.rows(a, [Row(tls, test, more) for tls in TLS for test in TESTS],
                  lambda row, mode: stranger.pair(a.build, row.argv, mode=mode, env=row.env, check=row.check, terminal=True))


if __name__ == "__main__":
    main()
