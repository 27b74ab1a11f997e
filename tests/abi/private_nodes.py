#!/usr/bin/python3
"""The private nodes of each release of rdma-core: ours hold what the releases' hold, and drivers' libraries load.

Usage: private_nodes.py OURS              compares the nodes, loads a driver library made for each, then the system's
       private_nodes.py --drivers [DIR]   loads the system's, or those of DIR, on the libibverbs.so.1 of LD_LIBRARY_PATH
"""
import ctypes
import glob
import os
import shutil
import subprocess
import sys
import tempfile

FIRST = 34
# IBVERBS_PRIVATE_34 as releases 34 to 56 have it, each with what was added up to then.
NAMES = """
    __ioctl_final_num_attrs __verbs_log _verbs_init_and_alloc_context execute_ioctl ibv_cmd_advise_mr ibv_cmd_alloc_dm
    ibv_cmd_alloc_mw ibv_cmd_alloc_pd ibv_cmd_attach_mcast ibv_cmd_close_xrcd ibv_cmd_create_ah ibv_cmd_create_counters
    ibv_cmd_create_cq ibv_cmd_create_cq_ex ibv_cmd_create_cq_ex2 ibv_cmd_create_flow ibv_cmd_create_flow_action_esp
    ibv_cmd_create_qp ibv_cmd_create_qp_ex ibv_cmd_create_qp_ex2 ibv_cmd_create_rwq_ind_table ibv_cmd_create_srq
    ibv_cmd_create_srq_ex ibv_cmd_create_wq ibv_cmd_dealloc_mw ibv_cmd_dealloc_pd ibv_cmd_dereg_mr ibv_cmd_destroy_ah
    ibv_cmd_destroy_counters ibv_cmd_destroy_cq ibv_cmd_destroy_flow ibv_cmd_destroy_flow_action ibv_cmd_destroy_qp
    ibv_cmd_destroy_rwq_ind_table ibv_cmd_destroy_srq ibv_cmd_destroy_wq ibv_cmd_detach_mcast ibv_cmd_free_dm
    ibv_cmd_get_context ibv_cmd_modify_cq ibv_cmd_modify_flow_action_esp ibv_cmd_modify_qp ibv_cmd_modify_qp_ex
    ibv_cmd_modify_srq ibv_cmd_modify_wq ibv_cmd_open_qp ibv_cmd_open_xrcd ibv_cmd_poll_cq ibv_cmd_post_recv
    ibv_cmd_post_send ibv_cmd_post_srq_recv ibv_cmd_query_context ibv_cmd_query_device ibv_cmd_query_device_any
    ibv_cmd_query_mr ibv_cmd_query_port ibv_cmd_query_qp ibv_cmd_query_srq ibv_cmd_read_counters ibv_cmd_reg_dm_mr
    ibv_cmd_reg_dmabuf_mr ibv_cmd_reg_mr ibv_cmd_req_notify_cq ibv_cmd_rereg_mr ibv_cmd_resize_cq ibv_query_gid_type
    ibv_read_ibdev_sysfs_file ibv_wr_opcode_str verbs_allow_disassociate_destroy verbs_init_cq verbs_open_device
    verbs_set_ops verbs_uninit_context"""
# Later nodes: what they have besides, and what they lost.
ADDED = {57: "", 59: """ibv_cmd_alloc_dmah ibv_cmd_export_dmabuf_fd ibv_cmd_free_dmah ibv_cmd_query_port_speed
                        ibv_cmd_reg_mr_ex""",
         64: "ibv_dmabuf_heap_alloc ibv_dmabuf_heap_cc_shared_init ibv_dmabuf_heap_destroy ibv_dmabuf_heap_free",
         65: """ibv_cmd_create_comp_cntr ibv_cmd_destroy_comp_cntr ibv_cmd_inc_comp_cntr ibv_cmd_inc_err_comp_cntr
                ibv_cmd_qp_attach_comp_cntr ibv_cmd_query_comp_cntr_caps ibv_cmd_read_comp_cntr
                ibv_cmd_read_err_comp_cntr ibv_cmd_set_comp_cntr ibv_cmd_set_err_comp_cntr"""}
REMOVED = {57: {"ibv_cmd_query_device"}}
DATA = "verbs_allow_disassociate_destroy"
DRIVERS = ["libmlx5", "libmlx4", "libefa", "libmana", "libhns", "libionic"]

bad = []


def expect(ok, what):
    if not ok:
        bad.append(what)


def nodes():
    """number -> the names in that node."""
    out, names = {}, set(NAMES.split())
    for n in [FIRST, *ADDED]:
        names = (names | set(ADDED.get(n, "").split())) - REMOVED.get(n, set())
        out[n] = names | {f"verbs_register_driver_{n}"}
    return out


def exported(lib):
    """number -> names, and name -> the number of its default version."""
    text = subprocess.run(["nm", "-D", "--with-symbol-versions", "--defined-only", lib], check=True,
                          capture_output=True, text=True).stdout
    held, default = {}, {}
    for line in text.splitlines():
        name, _, node = line.split()[-1].partition("@")
        if "IBVERBS_PRIVATE_" in node:
            n = int(node.rpartition("_")[2])
            held.setdefault(n, set()).add(name)
            if node.startswith("@"):
                default[name] = n
    return held, default


def compare(lib):
    held, default = exported(lib)
    wanted = nodes()
    expect(sorted(held) == sorted(wanted), f"the nodes {sorted(held)}, not {sorted(wanted)}")
    for n, names in wanted.items():
        expect(held.get(n) == names, f"IBVERBS_PRIVATE_{n}: too many {sorted(held.get(n, set()) - names)}, "
                                     f"missing {sorted(names - held.get(n, set()))}")
    for name in set().union(*wanted.values()):
        first = min(n for n in wanted if name in wanted[n])
        expect(default.get(name) == first, f"{name}: the default version is {default.get(name)}, not {first}")


def make_driver(tmp, n, names):
    """A library that binds those names of that node, as a driver's does, and registers when it is loaded."""
    at = os.path.join(tmp, f"driver{n}-{len(names)}")
    os.makedirs(at)
    with open(f"{at}/node.map", "w") as f:
        f.write(f"IBVERBS_PRIVATE_{n} {{ global: *; }};\n")
    functions = sorted(names - {DATA})
    with open(f"{at}/stub.c", "w") as f:
        f.write("".join(f"void {name}(void) {{}}\n" for name in functions) + f"char {DATA};\n")
    with open(f"{at}/driver.c", "w") as f:
        f.write("".join(f"extern void {name}();\n" for name in functions) + f"extern char {DATA};\n"
                f"void *const bound[] = {{&{DATA}, {', '.join(functions)}}};\n"
                f"__attribute__((constructor)) static void load(void) {{ verbs_register_driver_{n}(bound); }}\n")
    flags = ["-shared", "-fPIC", "-w", "-std=gnu11"]
    cc = os.environ.get("CC", "cc")
    subprocess.run([cc, *flags, f"{at}/stub.c", "-o", f"{at}/libibverbs.so.1", "-Wl,-soname,libibverbs.so.1",
                    f"-Wl,--version-script={at}/node.map"], check=True)
    subprocess.run([cc, *flags, f"{at}/driver.c", "-o", f"{at}/driver.so", f"{at}/libibverbs.so.1"], check=True)
    return f"{at}/driver.so"


def load(path):
    """None, or why it does not load with every symbol bound at once."""
    try:
        ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_GLOBAL)
    except OSError as e:
        return str(e)
    return None


def load_made():
    with tempfile.TemporaryDirectory() as tmp:
        for n, names in nodes().items():
            why = load(make_driver(tmp, n, names))
            expect(not why, f"a driver library of node {n} does not load: {why}")
        # that these would be noticed
        for n, names in ((57, {"ibv_cmd_query_device"}), (33, {"ibv_cmd_reg_mr"})):
            why = load(make_driver(tmp, n, names | {f"verbs_register_driver_{n}"})) or ""
            expect(f"IBVERBS_PRIVATE_{n}" in why, f"IBVERBS_PRIVATE_{n} has {names}, or the loader says: {why}")
    print(f"driver libraries of nodes {', '.join(map(str, nodes()))} load")


def load_drivers(directory=None):
    """Those that the system has, all in this process."""
    found = []
    for d in [directory] if directory else glob.glob("/usr/lib/*-linux-gnu") + ["/usr/lib64"]:
        found += [p for name in DRIVERS for p in glob.glob(f"{d}/{name}.so.1")]
        found += glob.glob(f"{d}/libibverbs/*-rdmav*.so")
    for path in found:
        why = load(path)
        expect(not why, f"{path} does not load: {why}")
    print(f"{len(found)} driver libraries of {directory or 'this system'}:", *sorted(os.path.basename(p) for p in found))
    return len(found)


def ours_is_loaded():
    path = os.environ.get("LD_LIBRARY_PATH", "").split(":")[0]
    ctypes.CDLL("libibverbs.so.1", mode=os.RTLD_NOW | os.RTLD_GLOBAL)
    with open("/proc/self/maps") as f:
        maps = f.read()
    expect(path and os.path.realpath(f"{path}/libibverbs.so.1") in maps, f"libibverbs.so.1 is not that of '{path}'")


def main():
    ours_is_loaded()
    if sys.argv[1] == "--drivers":
        expect(load_drivers(*sys.argv[2:]), "there is no driver library")
    elif not shutil.which("nm") or not shutil.which(os.environ.get("CC", "cc")):
        print("SKIP: no nm and cc (packages binutils, gcc)")
        return 77
    else:
        compare(sys.argv[1])
        load_made()
        load_drivers()
    for b in bad:
        print("FAIL:", b)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
