#!/usr/bin/python3
"""examples/ci, action.yml and the Dockerfile: their YAML and JSON can be read, what they name exists, and the commands of
their jobs do what docs/ci.md says: a test passes, one that ignores an error fails with 124, and so does one that hangs. The
page's script of a server and its client is run, too, and that of docs/network.md for two hosts.     ci.py BUILD
"""
import glob
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

try:
    import yaml
except ImportError:
    print("SKIP: no python3-yaml here (scripts/deps test)")
    sys.exit(77)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(sys.argv[1])
LIMIT = 60


def read(*names):
    with open(os.path.join(ROOT, *names)) as f:
        return f.read()


def check(true, *what):
    if not true:
        sys.exit("FAIL: " + " ".join(map(str, what)))


def shell(script, top):
    """As a runner does: bash -e, in the project's folder, with `verbena` on the PATH."""
    env = dict(os.environ, PATH=f"{BUILD}:{os.environ['PATH']}")
    return subprocess.run(["bash", "-eo", "pipefail", "-c", script], cwd=top, env=env, timeout=LIMIT,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def job(name, steps):
    """The job's own steps, with a test that passes, and with one that ends with 0 although a READ of it fails."""
    for source, status in (("02-rc-write-read-atomic.c", 0), ("08-odp-and-windows.c", 124)):
        with tempfile.TemporaryDirectory() as top:
            shutil.copy(os.path.join(ROOT, "examples", source), os.path.join(top, "rdma_test.c"))
            done = shell("\n".join(steps), top)
            check(done.returncode == status, f"{name} with {source}: exit status {done.returncode}, not {status}:", done.stdout)
            with open(os.path.join(top, "verbena.log")) as f:
                log = f.read()
            check(("its memory window is not bound" in log) == bool(status), f"{name} with {source}: verbena.log has", repr(log))
    with tempfile.TemporaryDirectory() as top:
        with open(os.path.join(top, "rdma_test.c"), "w") as f:
            f.write("#include <unistd.h>\nint main(void) { return pause(); }\n")
        done = shell("\n".join(steps).replace(" 60 ", " 0.2 "), top)
        check(done.returncode == 124 and "timeout: sending signal TERM" in done.stdout, name, "with a test that hangs:", done)


def log_step(name, step):
    """It prints the log, and nothing if a step before it failed."""
    with tempfile.TemporaryDirectory() as top:
        done = shell(step, top)
        check((done.returncode, done.stdout) == (0, ""), name, "without a log:", done)
        shell("echo sentence >verbena.log", top)
        done = shell(step, top)
        check((done.returncode, done.stdout) == (0, "sentence\n"), name, "with a log:", done)


def two_processes():
    """docs/ci.md's script, with a server and a client that work, and with a client that fails: its status counts."""
    script = re.search(r"^## 3\..*?```bash\n(.*?)```", read("docs", "ci.md"), re.M | re.S)[1]
    script = script.replace(":4853 ", ":48A8 ")  # 18600
    for client, status in ("exec ./server 127.0.0.1", 0), ("exit 3", 3):
        with tempfile.TemporaryDirectory() as top:
            source = os.path.join(ROOT, "examples", "01-rc-send.c")
            done = shell(f"cc {source} -o server -libverbs; printf '#!/bin/sh\\n{client}\\n' >client; chmod 755 client\n{script}", top)
            check(done.returncode == status, f"the page's script with the client {client!r}:", done)


def action():
    text = yaml.safe_load(read("action.yml"))
    check(set(text) == {"name", "description", "inputs", "runs", "branding"}, "action.yml has", sorted(text))
    check(text["runs"]["using"] == "composite", "action.yml:", text["runs"])
    for step in text["runs"]["steps"]:
        check(step["shell"] == "bash", "action.yml: each step needs a shell:", step)
        script = re.match(r'"\$GITHUB_ACTION_PATH/([\w/-]+)"', step["run"])[1]
        check(os.access(os.path.join(ROOT, script), os.X_OK), script, "cannot be executed")
        for value in step["env"].values():
            for name in re.findall(r"inputs\.(\w+)", value):
                check(name in text["inputs"], "action.yml: no input", name)
    done = subprocess.run([os.path.join(ROOT, "scripts", "ci-install"), "--from=nowhere"], capture_output=True, text=True)
    check(done.returncode == 2 and "unknown option --from=nowhere" in done.stderr, "ci-install --from=nowhere:", done)
    return set(text["inputs"])


def github(inputs):
    text = yaml.safe_load(read("examples", "ci", "github.yml"))
    check(set(text) == {"name", True, "jobs"}, "github.yml has", list(text))  # YAML 1.1 takes `on` for true
    steps = text["jobs"]["rdma"]["steps"]
    for step in steps:
        check(("run" in step) != ("uses" in step), "github.yml: a step runs or uses something:", step)
    ours = [step for step in steps if "/verbena@" in step.get("uses", "")]
    check(len(ours) == 1 and set(ours[0]["with"]) <= inputs, "github.yml gives the action", ours)
    job("github.yml", [step["run"] for step in steps if "run" in step and "if" not in step])
    for step in steps:
        if step.get("if") == "failure()":
            log_step("github.yml", step["run"])


def gitlab():
    text = yaml.safe_load(read("examples", "ci", "gitlab.yml"))
    known = {"image", "timeout", "variables", "before_script", "script", "after_script", "artifacts"}
    check(set(text["rdma"]) == known, "gitlab.yml has", sorted(text["rdma"]))
    check(text["rdma"]["artifacts"]["paths"] == ["verbena.log"], "gitlab.yml keeps", text["rdma"]["artifacts"])
    job("gitlab.yml", text["rdma"]["script"])
    log_step("gitlab.yml", "\n".join(text["rdma"]["after_script"]))


def compose():
    """The two commands, where both see one another."""
    services = yaml.safe_load(read("examples", "ci", "compose.yaml"))["services"]
    server, client = services["server"], services["client"]
    for key in "network_mode", "pid":
        check(client[key] == "service:server", "compose.yaml: the client's", key, "is", client.get(key))
    check(client["depends_on"] == {"server": {"condition": "service_healthy"}}, "compose.yaml:", client["depends_on"])
    if not shutil.which("ib_write_bw"):
        print("compose.yaml's commands are not run: no ib_write_bw here")
        return
    path = f"{BUILD}:{os.environ['PATH']}"
    with tempfile.TemporaryFile("w+") as out:
        end = subprocess.Popen(shlex.split(server["command"]), env=dict(os.environ, PATH=path), stdout=out, stderr=out)
        try:
            until = time.monotonic() + LIMIT
            while shell(server["healthcheck"]["test"], "/").returncode:
                check(end.poll() is None and time.monotonic() < until, "compose.yaml: the server is not healthy")
                time.sleep(0.05)
            done = shell(client["command"], "/")
            status = end.wait(timeout=LIMIT)
        finally:
            end.kill()
        out.seek(0)
        check(done.returncode == 0 and status == 0, "compose.yaml: client", done.returncode, done.stdout, "server", status, out.read())


def compose_roce():
    """The two commands on two hosts."""
    services = yaml.safe_load(read("examples", "ci", "compose-roce.yaml"))["services"]
    server, client = services["server"], services["client"]
    for service in server, client:
        check(not {"network_mode", "ports"} & set(service), "compose-roce.yaml: a service has no network of its own:", service)
    check(server["healthcheck"] == yaml.safe_load(read("examples", "ci", "compose.yaml"))["services"]["server"]["healthcheck"],
          "compose-roce.yaml: the healthcheck is not compose.yaml's")
    argv = shlex.split(server["command"])
    check(shlex.split(client["command"]) == argv + ["server"], "compose-roce.yaml: the client's command is", client["command"])
    script = network_script()
    check(" ".join(argv[argv.index("--") + 1:]) in script and "run --netdev=eth0 --fail-on=warn" in script,
          "docs/network.md's script has other commands than compose-roce.yaml:", script)


def network_script():
    """docs/network.md's, for a CI job."""
    return re.search(r"\*\*A CI job\*\*.*?```bash\n(.*?)```", read("docs", "network.md"), re.S)[1]


def two_hosts():
    if not shutil.which("ib_write_bw") or subprocess.run(["unshare", "-Urn", "true"], stderr=subprocess.DEVNULL).returncode:
        print("docs/network.md's script is not run: no ib_write_bw or no user namespaces here")
        return
    done = shell(network_script(), "/")
    check(done.returncode == 0 and done.stdout.count(" 65536 ") == 2, "docs/network.md's script:", done.returncode, done.stdout)


def rest():
    text = json.loads(read("examples", "ci", "devcontainer.json"))
    check(text["image"] == "verbena", "devcontainer.json:", text)
    check(shell(text["postCreateCommand"], "/").returncode == 0 or not shutil.which("ibv_devinfo"), "devcontainer.json")
    stages = re.findall(r"^FROM \S+ AS (\w+)|--from=(\w+)|from=(\w+)", read("Dockerfile"), re.M)
    made = {made for made, _, _ in stages if made}
    check({name for stage in stages for name in stage[1:] if name} <= made, "the Dockerfile copies from", stages)
    page = read("docs", "ci.md") + read("docs", "network.md")
    version = read("VERSION").strip()
    for path in glob.glob(os.path.join(ROOT, "examples", "ci", "*")):
        check(os.path.basename(path) in page, "docs/ci.md does not name", path)
        with open(path) as f:
            for other in re.findall(r"(?<![\d.])\d+\.\d+\.\d+(?!\.\d)", f.read()):
                check(other == version, path, "names version", other, "and not", version)


def main():
    github(action())
    gitlab()
    compose()
    compose_roce()
    two_hosts()
    two_processes()
    rest()
    print("the examples for CI systems work")


main()
