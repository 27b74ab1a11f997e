#!/usr/bin/python3
"""rdma-core's own Python suite, unmodified, all of it.

Every case must pass, but those of the table in docs/conformance.md, which the suite itself skips, since it asks
for what is not there.  A case that is skipped and not in the table fails the test, and so does one that passes although
it is in the table, or a row that is about another number of cases.

    pyverbs.py [--build DIR] [--udp] [words]

--udp: with VERBENA_WIRE=udp on lo, in a network namespace of its own.  The results must be the same, and each case whose
queue pairs carry data has to be seen in the kernel's count of UDP datagrams.  No case is an exception.
"""
import fnmatch
import gzip
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import hosts
import stranger

SOURCE = "/usr/share/doc/rdma-core/tests"
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TABLE = os.path.join(ROOT, "docs", "conformance.md")
SECTION = "## rdma-core's test-suite"
# What docs name as a test: some case of each has to pass.
NAMED = ["test_addr", "test_device", "test_pd", "test_cq", "test_cq_events", "test_atomic", "test_qp", "test_parent_domain",
         "test_cqex", "test_mlx5_timestamp", "test_mr", "test_odp", "test_relaxed_ordering", "test_fork", "test_shared_pd",
         "test_qpex", "test_rdmacm"]
# Cases that send data from queue pair to queue pair, so that with --udp there are datagrams.
CARRIED = ["test_atomic.*.test_atomic_[cf]*", "test_cq_events.*_rc", "*_rc_traffic*",
            "test_mr.*.test_dm_*traffic", "test_mr.*.test_mr_rereg_*", "test_mr.*_mw_type[12]*", "test_odp.*_rc_*",
            "test_parent_domain.*_rc_*", "test_qpex.*_ex_rc_*", "test_shared_pd.*_rc_*",
           "*_u[cd]_traffic*", "*_xrc_traffic*", "test_qpex.*_ex_u[cd]_*", "test_qpex.*_ex_xrc_*"]
SKIPPED, PASSES, EITHER = {"skip"}, {"ok"}, {"ok", "skip"}


def matches(name, patterns):
    return any(fnmatch.fnmatchcase(name, f"tests.{p}") for p in patterns)


class Row:
    """Cases that are skipped: their patterns, how many they are, why, and where they are not."""

    def __init__(self, cells):
        self.patterns = re.findall(r"`([^`]+)`", cells[0])
        self.count, self.why, self.unless = int(cells[1]), cells[2], cells[3]
        self.met = 0

    def has(self, name):
        return matches(name, self.patterns)

    def allowed(self, huge):
        """What may become of the cases on this machine."""
        if self.unless == "huge pages":
            return PASSES if huge else SKIPPED
        if self.unless.startswith("`/dev/"):  # whether they pass depends on what it is, and on who may use it
            return EITHER if os.path.exists(self.unless.strip("`")) else SKIPPED
        if self.unless == "CUDA":
            return EITHER if importlib.util.find_spec("cuda") else SKIPPED
        return SKIPPED


def table():
    with open(TABLE, encoding="utf-8") as f:
        section = f.read().split(f"\n{SECTION}\n")[1].split("\n## ")[0]
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("|")]
    return [Row(cells) for cells in rows[2:]]


def modules(mode):
    """test_rdmacm asks /sys for the interface of the device, which only `verbena run` shows."""
    names = (re.match(r"(test_\w+)\.py(\.gz)?$", n) for n in os.listdir(SOURCE))
    return sorted(m.group(1) for m in names if m and (mode == "run" or m.group(1) != "test_rdmacm"))


def copy(to):
    for name in os.listdir(SOURCE):
        path = os.path.join(SOURCE, name)
        if name.endswith(".gz"):
            with gzip.open(path) as f, open(os.path.join(to, name[:-3]), "wb") as g:
                shutil.copyfileobj(f, g)
        elif name.endswith(".py"):
            shutil.copy(path, to)
    shutil.copy(os.path.join(os.path.dirname(os.path.abspath(__file__)), "pyverbs_cases.py"), to)


def cases(build, directory, wanted, mode):
    """Runs the suite; returns ({id: (what, why, datagrams)}, exit status, errors)."""
    argv = ["/usr/bin/python3", "-W", "ignore", "pyverbs_cases.py", ",".join("tests." + m for m in wanted),
            "--dev", "verbena0", "--port", "1", "--gid", "0"]
    line, env = stranger.command(build, argv, mode)
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    with open(os.path.join(directory, "lines"), "w+b") as lines, \
            open(os.path.join(directory, "errors"), "w+b") as errors:
        try:
            # Its descriptor 3 is where the cases report: the programs' own output cannot get in between.
            status = subprocess.run(["/bin/sh", "-c", 'exec "$@" 3>&1 1>&2', "sh", *line], env=env, cwd=directory,
                                    stdin=subprocess.DEVNULL, stdout=lines, stderr=errors, timeout=240).returncode
        except subprocess.TimeoutExpired:
            status = None
        lines.seek(0)
        errors.seek(0)
        found = {}
        for text in lines:
            name, *told = json.loads(text)
            if told[0] != "start" or name not in found:
                found[name] = told
        return found, status, errors.read().decode(errors="replace")


def main():
    udp = "--udp" in sys.argv
    if udp:
        hosts.alone()
        sys.argv.remove("--udp")
        os.environ.update(VERBENA_NETDEV="lo", VERBENA_WIRE="udp")
    a = stranger.arguments()
    if not os.path.isdir(SOURCE):
        stranger.skip(f"{SOURCE} is not there (package python3-pyverbs; some images leave out /usr/share/doc)")
    if subprocess.run(["/usr/bin/python3", "-c", "import pyverbs"], capture_output=True).returncode:
        stranger.skip("python3-pyverbs not installed (scripts/deps test)")
    bad = passed = skipped = carried = 0
    for mode in ("run", "path") if a.mode == "both" else (a.mode,):
        with stranger.huge_pages(16) as huge, tempfile.TemporaryDirectory(prefix="verbena-pyverbs-") as directory:
            copy(directory)
            found, status, errors = cases(a.build, directory, a.rows or modules(mode), mode)
        if status != 0:
            bad += 1
            last = [n for n, (what, *_) in found.items() if what == "start"]
            print(f"FAILED  [{mode}] the suite ended with status {status}"
                  + (f" in {last[-1]}" if last else "") + f"\n{stranger.tail(errors)}")
        rows = table()
        for name, (what, why, datagrams) in found.items():
            row = next((r for r in rows if r.has(name)), None)
            if row:
                row.met += 1
            if what not in (row.allowed(huge) if row else PASSES):
                bad += 1
                print(f"FAILED  {name} [{mode}]: {what}, " + (f"listed as skipped: {row.why}" if row else "not listed")
                      + f"\n{stranger.tail(why)}")
            elif udp and what == "ok" and not datagrams and matches(name, CARRIED):
                bad += 1
                print(f"FAILED  {name} [{mode}]: it passed, but no UDP datagram came")
            elif what == "ok":
                passed += 1
                carried += udp and datagrams > 0
            else:
                skipped += 1
        for module in [] if a.rows else NAMED:
            if module not in modules(mode):
                continue
            if not any(what == "ok" and name.startswith(f"tests.{module}.") for name, (what, *_) in found.items()):
                bad += 1
                print(f"FAILED  {module} [{mode}]: no case of it passed")
        for row in rows:
            if not a.rows and row.met != row.count:
                bad += 1
                print(f"FAILED  {row.patterns} [{mode}]: {row.met} cases, the table says {row.count}")
        if bad and errors.strip():
            print(f"  [{mode}] errors:\n{stranger.tail(errors, 60)}")
    print(f"{passed} passed, {bad} failed, {skipped} skipped" + (f", {carried} passed by UDP" if udp else ""))
    return 1 if bad or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
