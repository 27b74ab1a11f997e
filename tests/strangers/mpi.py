#!/usr/bin/python3
"""Open MPI, four ranks, by each of its ways to the verbs: UCX over RC and over datagrams, libfabric over RC, and the
BTL "openib" of its own, which asks for InfiniBand.  The ranks run mpi_ranks.py in Python (mpi4py).

Open MPI's own shared memory is left out in every row, so that the verbs carry all there is."""
import os
import re

import stranger

RANKS = 4
UCX = ["--mca", "pml", "ucx", "--mca", "osc", "ucx"]
ROWS = [("UCX over RC", UCX, {"UCX_TLS": "rc_verbs,ud_verbs,self"}),
        ("UCX over datagrams", UCX, {"UCX_TLS": "ud_verbs,self"}),
        ("libfabric's verbs", ["--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "mtl_ofi_provider_include", "verbs;ofi_rxm",
                               "--mca", "osc", "pt2pt"], {"FI_PROVIDER": "verbs;ofi_rxm"}),
        ("the BTL openib", ["--mca", "pml", "ob1", "--mca", "btl", "openib,self", "--mca", "btl_openib_allow_ib", "1", "--mca",
                            "btl_openib_warn_no_device_params_found", "0"], {"VERBENA_LINK": "infiniband"})]


ENV = {"UCX_NET_DEVICES": "verbena0:1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
       "PYTHONDONTWRITEBYTECODE": "1"}


class Row:
    def __init__(self, name, words, env):
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mpi_ranks.py")
        self.name = f"Open MPI by {name}"
        self.argv = ["mpirun", "--oversubscribe", "-np", str(RANKS), *words, "/usr/bin/python3", script]
        self.env = {**ENV, **env}
        if stranger.guarded() and "rc_verbs" in env.get("UCX_TLS", ""):
            self.lacks = stranger.GUARD_STOPS
        self.mistakes = {"check-changed"} if "ud_verbs" in env.get("UCX_TLS", "") else set()
        if "FI_PROVIDER" in env and stranger.own_address().startswith("127."):
            self.lacks = "libfabric passes over loopback, and there is no other address"


def judge(r, ranks):
    well = len(re.findall(r"^rank \d: well$", r.out, re.M))
    why = (f"status {r.status}" if r.status != 0 else f"{well} ranks of {ranks} are well" if well != ranks else None)
    return stranger.Pair(stranger.Result([], None, "", "", 0), r, why)


def lacks(a):
    """Why no ranks run here; None: they do."""
    if not stranger.there("mpirun"):
        return "mpirun not installed (scripts/deps demo test)"
    if stranger.run(a.build, ["/usr/bin/python3", "-c", "import mpi4py"]).status:
        return "mpi4py is not installed (scripts/deps test)"
    return None if "Open MPI" in stranger.run(a.build, ["mpirun", "--version"]).out else "mpirun is another MPI's"


def main():
    a = stranger.arguments()
    a.mode = "run"
    why = lacks(a)
    if why:
        stranger.skip(why)
    stranger.rows(a, [Row(*row) for row in ROWS], lambda row, mode: judge(stranger.run(a.build, row.argv, env=row.env), RANKS))


if __name__ == "__main__":
    main()
