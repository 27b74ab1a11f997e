#!/usr/bin/python3
"""A few rows of the other tests under --check: no program of others is reported, but the one that does what docs/check.md says.

`perftest.py --check on`, and the same of each other test, runs all of its rows so; `--check guard` under --check=guard.
"""
import perftest
import pingpong
import rdmacm
import stranger
import ucx


class Row:
    """A row of another test, and how that one runs it."""

    def __init__(self, row, run):
        self.row, self.run, self.name = row, run, row.name
        self.lacks = getattr(row, "lacks", None)


def perftests(line):
    row = perftest.Row(line)
    return Row(row, lambda a, mode: stranger.pair(a.build, row.argv, mode=mode, env=row.env, check=row.check))


def pingpongs(program, options):
    row = pingpong.Row(program, options)
    return Row(row, lambda a, mode: stranger.pair(a.build, row.argv, mode=mode, env=row.env, check=row.check))


def cms(row):
    return Row(row, lambda a, mode: rdmacm.one(a, row, mode))


def ucxs(tls, test):
    row = ucx.Row(tls, test, {})
    return Row(row, lambda a, mode: stranger.pair(a.build, row.argv, mode=mode, env={**row.env, **ucx.weak_fences(a)},
                                                 check=row.check, terminal=True))


def main():
    a = stranger.arguments("on")
    a.mode = "run"
    stranger.need("ib_send_bw", "ibv_rc_pingpong", "rping", "ucmatose", "udaddy", "ucx_perftest")
    table = [*map(perftests, ("ib_send_bw -n 200", "ib_write_bw -n 200", "ib_read_lat -n 200", "ib_atomic_bw -n 200")),
             pingpongs("ibv_rc_pingpong", "-e -n 200"), pingpongs("ibv_ud_pingpong", "-e -n 200"),
             cms(rdmacm.rping("-v -C 100", lines=100)), cms(rdmacm.ucmatose("-c 10")), cms(rdmacm.udaddy("")),
             ucxs("rc_verbs,ud_verbs", "ucp_get -s 65536 -n 50")]
    wrong = pingpongs("ibv_ud_pingpong", "-e -c -n 10")
    wrong.mistakes_always = {"check-changed"}
    stranger.rows(a, [*table, wrong], lambda row, mode: row.run(a, mode))


if __name__ == "__main__":
    main()
