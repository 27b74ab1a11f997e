/* The helpers that only translate, against the distribution's library where there is one. */
#include <dlfcn.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include <infiniband/sa.h>
#include <infiniband/verbs.h>
#include <rdma/ib_user_sa.h>

#include "bytes.h"

void ibv_copy_path_rec_from_kern(struct ibv_sa_path_rec *dst, struct ib_user_path_rec *src);
void ibv_copy_path_rec_to_kern(struct ib_user_path_rec *dst, struct ibv_sa_path_rec *src);
void ibv_copy_ah_attr_from_kern(struct ibv_ah_attr *dst, struct ib_uverbs_ah_attr *src);
void ibv_copy_qp_attr_from_kern(struct ibv_qp_attr *dst, struct ib_uverbs_qp_attr *src);
int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);
const char *ibv_get_sysfs_path(void);

/* Ours has the same name as its, so a pointer into the distribution's library is the only way to ask both. */
static void *theirs(const char *name)
{
	static const char *const places[] = {"/usr/lib/x86_64-linux-gnu/libibverbs.so.1",
					     "/usr/lib/aarch64-linux-gnu/libibverbs.so.1"};
	void *lib = dlopen(places[0], RTLD_NOW | RTLD_LOCAL);
	void *f;

	if (!lib)
		lib = dlopen(places[1], RTLD_NOW | RTLD_LOCAL);
	if (!lib) {
		print_message("SKIP: no libibverbs.so.1 of the distribution\n");
		skip();
	}
	f = dlsym(lib, name);
	assert_non_null(f);
	return f;
}

static void names_as_in_the_distribution(void **state)
{
	static const struct {
		const char *name;
		const char *(*ours)(int);
	} calls[] = {
	    {"ibv_wc_status_str", (const char *(*)(int))(void (*)(void))ibv_wc_status_str},
	    {"ibv_node_type_str", (const char *(*)(int))(void (*)(void))ibv_node_type_str},
	    {"ibv_port_state_str", (const char *(*)(int))(void (*)(void))ibv_port_state_str},
	};

	(void)state;
	for (size_t c = 0; c < sizeof(calls) / sizeof(calls[0]); c++) {
		const char *(*other)(int);

		*(void **)&other = theirs(calls[c].name);
		for (int i = -2; i < 40; i++)
			assert_string_equal(calls[c].ours(i), other(i));
	}
}

const char *ibv_wr_opcode_str(enum ibv_wr_opcode opcode);

/* Debian's library has not got it yet. */
static void opcodes_have_names(void **state)
{
	(void)state;
	assert_string_equal(ibv_wr_opcode_str(IBV_WR_RDMA_WRITE), "rdma-write");
	assert_string_equal(ibv_wr_opcode_str(IBV_WR_SEND_WITH_INV), "send-with-inv");
	assert_string_equal(ibv_wr_opcode_str(IBV_WR_ATOMIC_WRITE), "atomic-write");
	for (int i = -2; i < 40; i++)
		assert_non_null(ibv_wr_opcode_str((enum ibv_wr_opcode)i));
	assert_string_equal(ibv_wr_opcode_str((enum ibv_wr_opcode)12), "unknown"); /* between two of them */
	assert_string_equal(ibv_wr_opcode_str((enum ibv_wr_opcode)16), "unknown");
	assert_string_equal(ibv_wr_opcode_str((enum ibv_wr_opcode) - 1), "unknown");
}

static void rates_as_in_the_distribution(void **state)
{
	int (*to_mult)(enum ibv_rate), (*to_mbps)(enum ibv_rate);
	enum ibv_rate (*of_mult)(int), (*of_mbps)(int);

	(void)state;
	*(void **)&to_mult = theirs("ibv_rate_to_mult");
	*(void **)&to_mbps = theirs("ibv_rate_to_mbps");
	*(void **)&of_mult = theirs("mult_to_ibv_rate");
	*(void **)&of_mbps = theirs("mbps_to_ibv_rate");
	for (int i = -2; i < 40; i++) {
		assert_int_equal(ibv_rate_to_mult((enum ibv_rate)i), to_mult((enum ibv_rate)i));
		assert_int_equal(ibv_rate_to_mbps((enum ibv_rate)i), to_mbps((enum ibv_rate)i));
	}
	for (int i = -2; i < 1000; i++)
		assert_int_equal(mult_to_ibv_rate(i), of_mult(i));
	for (int i = -2; i < 1300000; i++)
		if (mbps_to_ibv_rate(i) != of_mbps(i))
			assert_int_equal(i, -1000);
}

static void attributes_as_in_the_distribution(void **state)
{
	void (*ah)(struct ibv_ah_attr *, struct ib_uverbs_ah_attr *);
	void (*qp)(struct ibv_qp_attr *, struct ib_uverbs_qp_attr *);
	struct ib_uverbs_qp_attr from;
	struct ibv_qp_attr a, b;
	struct ibv_ah_attr c, d;

	(void)state;
	*(void **)&ah = theirs("ibv_copy_ah_attr_from_kern");
	*(void **)&qp = theirs("ibv_copy_qp_attr_from_kern");
	kit_fill(&from, sizeof(from), 11);
	memset(&a, 0, sizeof(a));
	memset(&b, 0, sizeof(b));
	ibv_copy_qp_attr_from_kern(&a, &from);
	qp(&b, &from);
	assert_memory_equal(&a, &b, sizeof(a));
	memset(&c, 0, sizeof(c));
	memset(&d, 0, sizeof(d));
	ibv_copy_ah_attr_from_kern(&c, &from.ah_attr);
	ah(&d, &from.ah_attr);
	assert_memory_equal(&c, &d, sizeof(c));
}

static void path_records_survive_the_way_and_back(void **state)
{
	struct ib_user_path_rec from, back;
	struct ibv_sa_path_rec rec = {0};

	(void)state;
	kit_fill(&from, sizeof(from), 11);
	from.mtu = 4; /* has 32 bits there and 8 here */
	memset(&back, 0, sizeof(back));
	ibv_copy_path_rec_from_kern(&rec, &from);
	ibv_copy_path_rec_to_kern(&back, &rec);
	assert_memory_equal(&from, &back, sizeof(from));
}

static void attribute_files(void **state)
{
	char dir[] = "/tmp/verbena-names-XXXXXX", path[64], buf[16];
	FILE *f;

	(void)state;
	assert_string_equal(ibv_get_sysfs_path(), "/sys");
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/attr", dir);
	f = fopen(path, "w");
	assert_non_null(f);
	fputs("4: ACTIVE\n", f);
	fclose(f);
	assert_int_equal(ibv_read_sysfs_file(dir, "attr", buf, sizeof(buf)), 9);
	assert_string_equal(buf, "4: ACTIVE");
	assert_int_equal(ibv_read_sysfs_file(dir, "attr", buf, 10), 9);
	assert_string_equal(buf, "4: ACTIVE");
	errno = 0;
	assert_int_equal(ibv_read_sysfs_file(dir, "attr", buf, 9), -1); /* "4: ACTIV" is no state */
	assert_int_equal(errno, EOVERFLOW);
	assert_int_equal(ibv_read_sysfs_file(dir, "none", buf, sizeof(buf)), -1);
	assert_int_equal(ibv_read_sysfs_file(dir, "attr", buf, 0), -1);
	unlink(path);
	rmdir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(names_as_in_the_distribution),
	    cmocka_unit_test(opcodes_have_names),
	    cmocka_unit_test(rates_as_in_the_distribution),
	    cmocka_unit_test(attributes_as_in_the_distribution),
	    cmocka_unit_test(path_records_survive_the_way_and_back),
	    cmocka_unit_test(attribute_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
