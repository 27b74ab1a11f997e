#!/usr/bin/python3
"""ibv_devices and ibv_devinfo -v see verbena0, with its active RoCE port and the GID at index 0."""
import sys

import stranger

DEVINFO = ["verbena0", "PORT_ACTIVE", "link_layer:\t\tEthernet", "max_qp:\t\t\t\t65536", "max_mr:\t\t\t\t1048576",
           "max_cqe:\t\t\t4194304", "max_sge:\t\t\t32", "max_qp_wr:\t\t\t16384", "max_srq_wr:\t\t\t16384",
           "max_qp_rd_atom:\t\t\t128", "ATOMIC_HCA", "GID[  0]:"]


def main():
    a = stranger.arguments()
    stranger.need("ibv_devices", "ibv_devinfo")
    bad = []
    for mode in ("run", "path"):
        for argv, want in ((["ibv_devices"], ["verbena0"]), (["ibv_devinfo"], ["PORT_ACTIVE"]),
                           (["ibv_devinfo", "-v"], DEVINFO), (["ibv_devinfo", "-l"], ["1 HCA", "verbena0"])):
            r = stranger.run(a.build, argv, mode)
            squeezed = "".join(r.out.split())
            lack = [w for w in want if "".join(w.split()) not in squeezed]
            if r.status != 0 or lack:
                bad.append(argv)
                print(f"FAILED  {' '.join(argv)} [{mode}]: status {r.status}, not in its output: {lack}")
                print(stranger.tail(r.out, 120))
                print(stranger.tail(r.err))
            else:
                print(f"ok      {' '.join(argv)} [{mode}]")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
