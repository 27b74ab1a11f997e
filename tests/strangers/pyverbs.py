#!/usr/bin/python3
"""rdma-core's own Python suite, unmodified: the parts that this library claims.

Every case of the modules below must pass, but those in LATER, which may also be skipped by the suite itself (it
skips what answers EOPNOTSUPP): each has its reason.  A skip that is not listed fails the test.
"""
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import stranger

SOURCE = "/usr/share/doc/rdma-core/tests"
MODULES = ["test_addr", "test_device", "test_pd", "test_cq", "test_cq_events", "test_atomic", "test_qp",
           "test_parent_domain", "test_cqex", "test_mlx5_timestamp", "test_mr", "test_odp", "test_relaxed_ordering",
           "test_fork", "test_shared_pd", "test_qpex"]
# pattern of the case -> why it may be skipped
LATER = [
    (r"test_device\.DeviceTest\.test_query_gid_ex_bad_flow", "it wants an empty GID index, and none is"),
    (r"test_qp\.QPTest\.test_create_raw_", "raw packet QPs are for Ethernet adapters"),
    (r"test_qp\.QPTest\.test_query_raw_qp", "raw packet QPs are for Ethernet adapters"),
    (r"test_qp\.QPTest\.test_(create|query)_uc_", "UC"),
    (r"test_qp\.QPTest\.test_(create|query|modify)_ud_", "UD"),
    (r"test_qp\.QPTest\.test_query_data_in_order", "UD"),
    (r"test_cq\.CQTest\.test_resize_cq", "UD: it resizes a CQ of UD QPs"),
    (r"test_cq_events\..*_ud$", "UD"),
    (r"test_mr\.DmaBuf", "it takes its dma-bufs from /dev/dri"),
    (r"test_(odp|relaxed_ordering)\..*_ud_", "UD"),
    (r"test_qpex\..*(_ud_|_bad_flow)", "UD"),
    (r"test_parent_domain\..*_ud_", "UD"),
    (r"test_cqex\..*_ud_", "UD"),
    (r"test_cqex\..*_xrc_", "XRC"),
    (r"test_mlx5_timestamp\..*_raw_traffic", "raw packet QPs are for Ethernet adapters"),
    (r"test_mlx5_timestamp\.(TimeStampTest\.test_timestamp_free_running_rc_|TimeAPITest\.)", "it has mlx5's driver convert the "
     "time"),
]


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
    """Runs the suite; returns ({id: (what, why)}, exit status, errors)."""
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
            name, what, why = json.loads(text)
            if what != "start" or name not in found:
                found[name] = (what, why)
        return found, status, errors.read().decode(errors="replace")


def main():
    a = stranger.arguments()
    if not os.path.isdir(SOURCE):
        stranger.skip(f"{SOURCE} is not there (package rdma-core; some images leave out /usr/share/doc)")
    if subprocess.run(["/usr/bin/python3", "-c", "import pyverbs"], capture_output=True).returncode:
        stranger.skip("python3-pyverbs not installed (scripts/deps test)")
    bad = passed = skipped = 0
    for mode in ("run", "path") if a.mode == "both" else (a.mode,):
        with stranger.huge_pages(16) as huge, tempfile.TemporaryDirectory(prefix="verbena-pyverbs-") as directory:
            copy(directory)
            found, status, errors = cases(a.build, directory, a.rows or MODULES, mode)
        if status != 0:
            bad += 1
            last = [n for n, (what, _) in found.items() if what == "start"]
            print(f"FAILED  [{mode}] the suite ended with status {status}"
                  + (f" in {last[-1]}" if last else "") + f"\n{stranger.tail(errors)}")
        for name, (what, why) in found.items():
            later = next((reason for pattern, reason in LATER if re.search(pattern, name)), None)
            if "huge" in name and not huge:
                later = "no huge pages can be made available here"
            if what == "ok":
                passed += 1
            elif what == "skip" and later:
                skipped += 1
                print(f"skipped {name} [{mode}]: {later} ({why})")
            else:
                bad += 1
                print(f"FAILED  {name} [{mode}]: {what}\n{stranger.tail(why)}")
        if bad and errors.strip():
            print(f"  [{mode}] errors:\n{stranger.tail(errors, 60)}")
    print(f"{passed} passed, {bad} failed, {skipped} skipped")
    return 1 if bad or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
