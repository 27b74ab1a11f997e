#!/usr/bin/python3
"""qperf, a second for each test: RC by rdma_cm on RoCE, UC and UD by LIDs on InfiniBand.  With long counts every test
that it has of them, RC both ways."""
import os
import re

import stranger

RC = ["rc_lat", "rc_bw", "rc_rdma_write_poll_lat", "rc_rdma_read_bw", "ver_rc_fetch_add", "ver_rc_compare_swap"]
BY_LID = ["rc_bi_bw", "uc_bi_bw", "uc_rdma_write_poll_lat", "ud_lat", "ud_bi_bw"]
if os.environ.get("VERBENA_SOAK"):
    RC += ["rc_bi_bw", "rc_rdma_write_lat", "rc_rdma_write_bw", "rc_rdma_read_lat", "rc_fetch_add_mr", "rc_compare_swap_mr"]
    BY_LID += [*RC, "uc_lat", "uc_bw", "uc_rdma_write_lat", "uc_rdma_write_bw", "ud_bw"]
FIGURE = re.compile(r"^ +(?:latency|bw|send_bw|recv_bw|msg_rate) += +([0-9.]+)", re.M)


class Row:
    def __init__(self, test, link=None):
        self.test = test
        self.options = [] if link else ["-cm1"]
        self.env = {"VERBENA_LINK": link} if link else {}
        self.mistakes = set() if link else {"check-deregistered"}
        self.name = f"{'VERBENA_LINK=' + link + ' ' if link else ''}qperf {' '.join([*self.options, test])}"

    def check(self, r):
        figures = [float(f) for f in FIGURE.findall(r.out)]
        return f"status {r.status}" if r.status != 0 else None if figures and min(figures) > 0 else "no figures"


TABLE = [Row(t) for t in RC] + [Row(t, "infiniband") for t in BY_LID]


def one(a, row, mode):
    with stranger.server(a.build, ["qperf", "-lp", "{port}"], None, mode=mode, env=row.env) as (server, port):
        r = stranger.run(a.build, ["qperf", "-lp", str(port), "127.0.0.1", "-t", "1", *row.options, row.test], mode=mode,
                         env=row.env)
        return stranger.Pair(server.result(), r, row.check(r))


def main():
    a = stranger.arguments()
    stranger.need("qperf")
    stranger.rows(a, TABLE, lambda row, mode: one(a, row, mode))


if __name__ == "__main__":
    main()
