#!/usr/bin/python3
"""ibv_asyncwatch prints what becomes of the port, in a user and network namespace of its own: an address that comes, the
interface that goes down and returns, of each of two devices."""
import os
import subprocess
import sys
import time

import stranger

INSIDE = "--inside"
LIMIT = 60


def ip(words):
    subprocess.run(["ip", *words.split()], check=True)


def await_line(path, program, words, count=1):
    """Until the program's output has words so often; the kernel's notice, and nothing else, brings them."""
    end = time.monotonic() + LIMIT
    while True:
        with open(path, encoding="utf-8") as f:
            text = f.read()
        if text.count(words) >= count:
            return
        if program.poll() is not None or time.monotonic() > end:
            sys.exit(f"FAILED  {words!r} is not in the output of {program.args}:\n{text}")
        time.sleep(0.01)  # between two looks at the file


def watch(build, device, netdev, address):
    path = f"/tmp/verbena-asyncwatch-{os.getpid()}"
    argv, env = stranger.command(build, ["ibv_asyncwatch", "-d", device], env={"VERBENA_DEVICES": "2"})
    with open(path, "w", encoding="utf-8") as out:
        program = subprocess.Popen(["stdbuf", "-oL", *argv], env=env, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        await_line(path, program, "async event FD")
        ip(f"addr add {address} dev {netdev}")
        await_line(path, program, "IBV_EVENT_GID_CHANGE")
        ip(f"link set {netdev} down")
        await_line(path, program, "IBV_EVENT_PORT_ERR")
        ip(f"link set {netdev} up")
        await_line(path, program, "IBV_EVENT_PORT_ACTIVE")
        ip(f"addr del {address} dev {netdev}")  # it counts among the ordinary ones
        await_line(path, program, "IBV_EVENT_GID_CHANGE", 2)
    finally:
        program.kill()
        program.wait()
        os.unlink(path)
    print(f"ok      ibv_asyncwatch -d {device}, {netdev}", flush=True)


def inside(build):
    ip("link set lo up")
    for k in range(2):
        ip(f"link add v{k} type veth peer name p{k}")
        ip(f"addr add 10.77.{k}.1/24 dev v{k}")
        ip(f"link set v{k} up")
    for k in range(2):
        watch(build, f"verbena{k}", f"v{k}", f"10.77.{k}.2/24")


def main():
    a = stranger.arguments()
    if a.rows == [INSIDE[2:]]:
        return inside(a.build)
    stranger.need("unshare", "ip", "ibv_asyncwatch", "stdbuf")
    if subprocess.run(["unshare", "-Urn", "ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1"],
                      capture_output=True).returncode:
        stranger.skip("user and network namespaces with interfaces are not permitted here")
    return subprocess.run(["unshare", "-Urn", sys.executable, __file__, "--build", a.build, INSIDE[2:]]).returncode


if __name__ == "__main__":
    sys.exit(main())
