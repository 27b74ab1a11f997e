#!/usr/bin/python3
"""How `make bench` comes by its rows: what it takes from the programs' output, and how it judges.  Nothing is measured.

    bench.py
"""
import ctypes
import os
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
import rows  # noqa: E402
import sources  # noqa: E402


def same(what, is_, should_be):
    if is_ != should_be:
        sys.exit(f"FAILED: {what}: {is_}, not {should_be}")


def every_key_has_one_source():
    table = [r for _, part in rows.TABLE for r in part()]
    every = list(sources.all_sources())
    keys = {k for r in table for k in r.keys()}
    for key in sorted(keys):
        same(f"sources of {key}", len([s.name for s in every if s.serves([key])]), 1)
    same("sources that no row asks", [s.name for s in every if not s.serves(keys)], [])
    same("units", {r.unit for r in table} - set(rows.UNITS), set())


def judged(row, rounds):
    row.judge(rounds)
    return row.reached


def the_median_is_judged():
    time = rows.Row("", "lat", "ns", "", "limit", 1, 100)
    best, worse = {"lat": 150, "limit": 100}, {"lat": 300, "limit": 100}
    same("one good round of three", judged(time, [best, worse, worse]), False)
    same("the value then", (time.value, time.at, time.ratio), (300, 100, 3))
    same("its raw list", time.json()["raw"], [150, 300, 300])
    same("its ends", (time.json()["min"], time.json()["max"]), (150, 300))
    same("two good rounds of three", judged(time, [best, worse, best]), True)
    rate = rows.Row("", "send_rate", "M/s", "", "limit", 0.8)
    same("a rate below its limit", judged(rate, [{"send_rate": 79, "limit": 100}]), False)
    same("a rate above it", judged(rate, [{"send_rate": 81, "limit": 100}]), True)


def limits():
    each = rows.Row("", "lat", "ns", "", "limit", 1)
    same("each round's own limit counts", judged(each, [{"lat": 3, "limit": 4}, {"lat": 30, "limit": 20},
                                                        {"lat": 5, "limit": 6}]), True)
    same("a number", judged(rows.Row("", "lat", "ns", "", 110, 1), [{"lat": 111}]), False)
    same("nothing at all", judged(rows.Row("", "lat", "ns", "", 110, 1), [{"lat": 0}]), True)
    summed = rows.Row("", "lat", "ns", "", ("limit", 2, "more"), 1)
    same("a factor, and a key that is added", judged(summed, [{"lat": 25, "limit": 10, "more": 5}]), True)
    same("that limit", summed.at, 25)
    same("a limit that is missing", judged(each, [{"lat": 3}]), None)
    same("a figure that is missing", judged(each, [{}]), None)
    same("a round without it", judged(each, [{"lat": 3, "limit": 4}, {}]), True)


PART = """ 1
desc: Trigger: --dump-after=batch_over
fn=main
calls=20 0
+3 5000
fn=vcount_post
+1 40
calls=19 0
* 1900
+2 60
calls=1 0
* 300
fn=vb_post_send
+1 700
calls=20 0
+1 900
"""
LAT = """ #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile
 8       300000          0.39           393241.45      0.84     \t       51.79       \t-nan   \t\t468.95  \t\t1869.97
"""
BW = """ #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 8          300000           0.00               0.96   \t\t   0.125531
"""


def what_programs_print():
    same("calls of the library", sources.library_calls(PART), ("post", 110))
    same("a part without", sources.library_calls("fn=main\n+1 4\n"), None)
    c = sources.Context("", "", 1)
    real = sources.run_perftest
    try:
        sources.run_perftest = lambda *_, **__: LAT
        same("ib_send_lat", sources.perftest_lat("send", "free", lambda _: 1)(c), {
            "ib_send_lat_free_median": 840, "ib_send_lat_free_avg": 51790, "ib_send_lat_free_p99": 468950,
            "ib_send_lat_free_p999": 1869970})
        sources.run_perftest = lambda *_, **__: BW
        same("ib_send_bw", sources.perftest_bw("send", "free", 8, 1)(c), {"ib_send_rate_8_free": 125531})
        sources.run_perftest = lambda *_, **__: "#, usec\n1, 1.5e+04\n2, 0.5\n3, 9999.0\n"
        both = sources.two_pairs(c)
        same("two pairs: one of three round trips, each, is over 20 ms", round(both["pairs_late"]), 333333)
        same("two pairs: the longest", both["pairs_longest"], 3e7)
    finally:
        sources.run_perftest = real


def switches_are_a_rate():
    s = sources.Switches()
    s.seen = {1: [(10, 100), (12, 300)], 2: [(10, 5), (11, 10)]}
    same("the process with more", s.a_second(), 100)
    s.seen = {1: [(10, 100), (12, 300)]}
    same("a process that was not seen", s.a_second(), None)


def switches_of_the_engine():
    """A thread of the engine's name sleeps so many times; what others do does not count."""
    name = ctypes.CDLL(None).prctl  # of the thread that calls it
    seen = []

    def engine():
        name(15, b"verbena")
        seen.append(sources.engine_switches(os.getpid()))
        for _ in range(20):
            time.sleep(0.001)
        seen.append(sources.engine_switches(os.getpid()))

    same("no engine", sources.engine_switches(os.getpid()), None)
    thread = threading.Thread(target=engine)
    thread.start()
    thread.join()
    if seen[1] - seen[0] < 20:
        sys.exit(f"FAILED: {seen[1] - seen[0]} switches of a thread that slept 20 times")


def main():
    every_key_has_one_source()
    the_median_is_judged()
    limits()
    what_programs_print()
    switches_are_a_rate()
    switches_of_the_engine()
    print("the rows of make bench: well")


if __name__ == "__main__":
    main()
