"""How a project tests its RDMA code with pytest, on machines without an adapter.

    python3 -m pytest test_rdma.py          (verbena is found in PATH)

The programs are compiled as for an adapter.  Only `verbena run` in front of them is Verbena's.
"""
import pathlib
import subprocess
import time

import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent
LIMIT = 30  # seconds: a program whose peer does not answer may wait for ever


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    """Compiles an example."""
    top = tmp_path_factory.mktemp("programs")

    def compiled(name):
        subprocess.run(["cc", EXAMPLES / f"{name}.c", "-o", top / name, "-libverbs"], check=True)
        return top / name

    return compiled


def verbena(*options):
    return ["verbena", "run", *options, "--"]


@pytest.mark.parametrize("profile", ["default", "strict"])
def test_a_program(program, profile):
    """Status 124: the program ended with 0, and Verbena logged a warning or an error."""
    done = subprocess.run([*verbena(f"--profile={profile}", "--fail-on=warn"), program("02-rc-write-read-atomic")],
                          timeout=LIMIT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 'owner has "written by the visitor" and 42' in done.stdout


def test_a_server_and_its_client(program, tmp_path):
    path = program("01-rc-send")
    server_log, client_log = tmp_path / "server.log", tmp_path / "client.log"
    as_server = [*verbena(f"--log={server_log}", "--fail-on=warn"), path]
    as_client = [*verbena(f"--log={client_log}", "--fail-on=warn"), path, "127.0.0.1"]
    with subprocess.Popen(as_server, stdout=subprocess.PIPE, text=True) as server:
        try:
            for _ in range(LIMIT * 10):
                client = subprocess.run(as_client, timeout=LIMIT, capture_output=True, text=True)
                if "Connection refused" not in client.stderr:
                    break
                time.sleep(0.1)  # the server does not listen yet
            out = server.communicate(timeout=LIMIT)[0]
        finally:
            server.kill()
    assert client.returncode == 0, client.stderr
    assert server.returncode == 0, server_log.read_text()
    assert 'client received "hello, too"' in client.stdout
    assert 'server received "hello"' in out


def test_a_failure_is_explained(program, tmp_path):
    """This program ends with 0, though one of its READs fails: it invalidated the key before."""
    log = tmp_path / "log"
    done = subprocess.run([*verbena(f"--log={log}", "--fail-on=warn"), program("08-odp-and-windows")],
                          timeout=LIMIT, stdout=subprocess.DEVNULL)
    assert done.returncode == 124
    assert "its memory window is not bound" in log.read_text()
