#!/bin/bash
# <infiniband/verbs.h> as pkg-config finds it: C and C++, over the system's header and over one that declares the
# newer calls itself.   header.sh BUILD
set -u
build=$(realpath "$1")
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "FAIL: $*"; exit 1; }
command -v pkg-config >/dev/null || { echo "SKIP: no pkg-config"; exit 77; }
export PKG_CONFIG_PATH=$build

mkdir -p "$tmp/newer/infiniband"
cat >"$tmp/newer/infiniband/verbs.h" <<'C'
#ifndef NEWER_VERBS_H
#define NEWER_VERBS_H
#include_next <infiniband/verbs.h>
#ifdef __cplusplus
extern "C" {
#endif
enum ibv_mr_init_attr_mask { IBV_REG_MR_MASK_IOVA = 1, IBV_REG_MR_MASK_ADDR = 2, IBV_REG_MR_MASK_FD = 4,
			     IBV_REG_MR_MASK_FD_OFFSET = 8, IBV_REG_MR_MASK_DMAH = 16 };
enum ibv_tph_mem_type { IBV_TPH_MEM_TYPE_VM, IBV_TPH_MEM_TYPE_PM };
struct ibv_dmah { struct ibv_context *context; };
struct ibv_dmah_init_attr { uint32_t comp_mask, cpu_id; uint8_t ph, tph_mem_type; };
struct ibv_mr_init_attr { size_t length; int access; uint64_t comp_mask, iova; void *addr; int fd;
			  uint64_t fd_offset; struct ibv_dmah *dmah; };
struct ibv_buf;
struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *in);
void *ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **buf);
static inline int ibv_dm_export_dmabuf_fd(struct ibv_dm *dm) { return dm ? 0 : -1; }
struct ibv_comp_cntr { struct ibv_context *context; uint32_t handle; };
enum ibv_comp_cntr_type { IBV_COMP_CNTR_TYPE_WRS, IBV_COMP_CNTR_TYPE_BYTES };
struct ibv_comp_cntr_caps { uint64_t max_value; uint32_t max_counters, supported_qp_attach_ops; };
static inline int ibv_query_comp_cntr_caps(struct ibv_context *c, struct ibv_comp_cntr_caps *caps) { return !c || !caps; }
int ibv_query_port_speed(struct ibv_context *context, uint32_t port_num, uint64_t *port_speed);
#ifdef __cplusplus
}
#endif
#endif
C
cat >"$tmp/p.c" <<'C'
#include <infiniband/verbs.h>
#include <stdio.h>
#include <errno.h>
#ifndef VERBENA_VERBS_H
#error "not our header"
#endif
int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *c = list && list[0] ? ibv_open_device(list[0]) : NULL;
	struct ibv_pd *pd = c ? ibv_alloc_pd(c) : NULL;
	struct ibv_mr_init_attr attr;
	struct ibv_shpd shpd = {0};
	static char buf[8192];
	struct ibv_mr *mr;

	if (!pd)
		return 1;
	mr = ibv_reg_mr_relaxed(pd, buf, sizeof(buf), IBV_ACCESS_LOCAL_WRITE);
	if (!mr || ibv_dereg_mr_relaxed(mr) || ibv_flush_relaxed_mr(pd) || ibv_dealloc_pd(pd))
		return 2;
	attr.comp_mask = IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_DMAH;
	attr.buf = NULL;
	printf("works %d\n", (int)(shpd.handle + attr.comp_mask - 18));
	ibv_close_device(c);
	ibv_free_device_list(list);
	return (IBV_ACCESS_FLUSH_GLOBAL | IBV_ACCESS_LOCAL_WRITE) != 257;
}
C
cp "$tmp/p.c" "$tmp/p.cc"
tried=0
for compiler in "gcc -std=c11" "gcc -std=gnu17" "clang -std=c11" "g++ -std=c++14" "clang++ -std=c++17"; do
	command -v ${compiler%% *} >/dev/null || continue
	file=$tmp/p.c
	[[ $compiler == *++* ]] && file=$tmp/p.cc
	[[ $compiler == *++* ]] && ! echo 'int x;' | $compiler -x c++ -fsyntax-only - 2>/dev/null && continue
	for newer in "" "-I$tmp/newer"; do
		# ours comes first, as pkg-config's flags come before the system's directories
		$compiler -Wall -Wextra -Werror $(pkg-config --cflags verbena) $newer -fsyntax-only "$file" ||
			fail "$compiler $newer"
		tried=$((tried + 1))
	done
done
[[ $tried -ge 2 ]] || fail "no compiler was tried"
if nm -D "$build/lib/libibverbs.so.1" 2>/dev/null | grep -q __asan\\\|__tsan; then
	echo "$tried ways compile"
	exit 0
fi
gcc "$tmp/p.c" -o "$tmp/p" $(pkg-config --cflags --libs verbena) || fail "linking with pkg-config"
[[ $(LD_LIBRARY_PATH=$build/lib "$tmp/p") == "works 0" ]] || fail "the program"
echo "$tried ways compile, and the program works"
