#!/usr/bin/python3
"""The same programs somewhere else: `user`, as an ordinary user with a copy of the build; `netns`, in a user and
network namespace of its own where only lo is up.  Usage: elsewhere.py [--build DIR] user|netns"""
import os
import pwd
import shutil
import subprocess
import sys
import tempfile

import stranger

HERE = os.path.dirname(os.path.abspath(__file__))
# What runs there: a program and its rows.
RUNS = [["devinfo.py"],
        ["pingpong.py", "--mode", "run", "ibv_rc_pingpong -g 0 -c", "ibv_srq_pingpong -g 0 -q 1", "ibv_rc_pingpong -g 0 -N -c",
         "ibv_rc_pingpong -g 0 -t", "ibv_uc_pingpong -g 0 -e", "ibv_ud_pingpong -g 0 -e", "ibv_xsrq_pingpong -g 0 -n 1000",
         "VERBENA_LINK=infiniband ibv_uc_pingpong -e", "VERBENA_LINK=infiniband ibv_ud_pingpong -e -c",
         "VERBENA_LINK=infiniband ibv_xsrq_pingpong"],
        ["perftest.py", "ib_write_bw -c RC -s 1", "ib_send_lat -c UD -e", "ib_send_bw -c UC -e", "ib_send_bw -c UD -q 16",
         "ib_atomic_lat -A FETCH_AND_ADD"],
        ["ucx.py", "tag_lat -s 8", "ucp_get -s 65536", "ucp_fadd"], ["pyverbs.py", "--mode", "run"]]

# perftest keeps its domain of XRC in a file of /tmp that is the first user's who ran it.
XRC = ["perftest.py", "ib_send_lat -c XRC -e"]


def copy_build(build, to):
    """build/ is relocatable: the launcher and lib/ are all that programs need."""
    os.makedirs(to)
    shutil.copy2(os.path.join(build, "verbena"), to)
    shutil.copytree(os.path.join(build, "lib"), os.path.join(to, "lib"), symlinks=True)


def all_runs(prefix, build, here, runs):
    status = 0
    for program, *rows in runs:
        argv = [*prefix, "/usr/bin/python3", os.path.join(here, program), "--build", build, *rows]
        end = subprocess.run(argv, stdin=subprocess.DEVNULL, cwd="/").returncode
        status |= end != 0 and end != stranger.SKIP  # it has said what is not installed
    return 1 if status else 0


def user(build):
    stranger.need("setpriv", "ibv_rc_pingpong", "ib_write_bw")
    if os.geteuid() != 0:
        stranger.skip("not root: all the other tests run as an ordinary user already")
    nobody = pwd.getpwnam("nobody")
    prefix = ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups",
              "--no-new-privs", "--inh-caps=-all"]
    if subprocess.run([*prefix, "true"], capture_output=True).returncode:
        stranger.skip("may not become another user here")
    with tempfile.TemporaryDirectory(prefix="verbena-user-") as directory:
        os.chmod(directory, 0o755)
        copied = os.path.join(directory, "elsewhere")
        copy_build(build, copied)
        here = os.path.join(directory, "tests", "strangers")
        shutil.copytree(HERE, here, ignore=shutil.ignore_patterns("__pycache__"))
        os.mkdir(os.path.join(directory, "docs"))  # where pyverbs.py finds its table
        shutil.copy(os.path.join(os.path.dirname(os.path.dirname(HERE)), "docs", "conformance.md"), os.path.join(directory, "docs"))
        subprocess.run(["chmod", "-R", "a+rX", directory], check=True)
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        return all_runs(prefix, copied, here, RUNS)


def netns(build):
    stranger.need("unshare", "ip", "ibv_rc_pingpong", "ib_write_bw")
    if subprocess.run(["unshare", "-Urn", "ip", "link", "set", "lo", "up"], capture_output=True).returncode:
        stranger.skip("user and network namespaces are not permitted here")
    prefix = ["unshare", "-Urn", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    return all_runs(prefix, build, HERE, [*RUNS, XRC])


if __name__ == "__main__":
    a = stranger.arguments()
    sys.exit({"user": user, "netns": netns}[a.rows[0]](a.build))
