#!/usr/bin/python3
"""ibv_devices and ibv_devinfo -v see verbena0, with its active RoCE port and the GID at index 0; several devices, by
name; and a port of InfiniBand."""
import sys

import stranger

DEVINFO = ["verbena0", "PORT_ACTIVE", "link_layer:\t\tEthernet", "max_qp:\t\t\t\t65536", "max_mr:\t\t\t\t1048576",
           "max_cqe:\t\t\t4194304", "max_sge:\t\t\t32", "max_qp_wr:\t\t\t16384", "max_srq_wr:\t\t\t16384",
           "max_qp_rd_atom:\t\t\t128", "ATOMIC_HCA", "GID[  0]:", "hca_core_clock:\t\t\t1000000 kHZ",
           "completion timestamp_mask:\t\t\t0xffffffffffffffff", "max_cq_count:\t65535", "max_cq_period:\t4095 us"]


INFINIBAND = {"VERBENA_LINK": "infiniband"}
SEVERAL = {"VERBENA_DEVICES": "3", "VERBENA_DEVICE": "mlx5_0"}
# command line, what its output has, settings
ROWS = [(["ibv_devices"], ["verbena0"], None), (["ibv_devinfo"], ["PORT_ACTIVE"], None),
        (["ibv_devinfo", "-v"], DEVINFO, None), (["ibv_devinfo", "-l"], ["1 HCA", "verbena0"], None),
        (["ibv_devinfo", "-l"], ["3 HCAs", "mlx5_0", "mlx5_1", "mlx5_2"], SEVERAL),
        *((["ibv_devinfo", "-v", "-d", f"mlx5_{k}"], [f"hca_id: mlx5_{k}", *DEVINFO[1:]], SEVERAL) for k in range(3)),
        (["ibv_devinfo", "-v"], ["PORT_ACTIVE", "link_layer: InfiniBand", "sm_lid: 1", "port_lmc: 0x00",
                                 "GID[  0]: fe80:0000:0000:0000:"], INFINIBAND)]


def main():
    a = stranger.arguments()
    stranger.need("ibv_devices", "ibv_devinfo")
    bad = []
    for mode in ("run", "path"):
        for argv, want, env in ROWS:
            r = stranger.run(a.build, argv, mode, env)
            squeezed = "".join(r.out.split())
            lack = [w for w in want if "".join(w.split()) not in squeezed]
            if env is INFINIBAND and "port_lid:0" in squeezed:
                lack.append("a port_lid")
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
