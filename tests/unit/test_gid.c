/* Who made a mistake with GIDs hears of it at its own end: the far end's log is not read by whoever forgot
 * one. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <infiniband/verbs.h>

#include "kit.h"

#define MISSED "this process never queried its own GID"

static struct ibv_context *ctx; /* a child's, as are the others */
static struct ibv_qp *qp;
static uint32_t *told_qpn; /* shared with the parent */
static char text[4096];

static void need(bool good)
{
	if (!good)
		_exit(99);
}

/* A queue pair in INIT. */
static void open_qp(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_qp_init_attr init = {
	    .qp_type = IBV_QPT_RC,
	    .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	struct ibv_pd *pd;

	need(list && list[0]);
	ctx = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	need(ctx);
	pd = ibv_alloc_pd(ctx);
	init.send_cq = init.recv_cq = ibv_create_cq(ctx, 1, NULL, NULL, 0);
	need(pd && init.send_cq);
	qp = ibv_create_qp(pd, &init);
	need(qp);
	*told_qpn = qp->qp_num;
	need(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}

/* A good address; the caller spoils it. */
static struct ibv_ah_attr address(void)
{
	struct ibv_ah_attr av = {.is_global = 1, .port_num = 1};

	av.grh.dgid.raw[10] = av.grh.dgid.raw[11] = 0xff;
	av.grh.dgid.raw[12] = 127, av.grh.dgid.raw[15] = 1;
	return av;
}

static void refused_with(int err, const struct ibv_ah_attr *av)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .ah_attr = *av};

	need(ibv_modify_qp(qp, &a,
			   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == err);
}

static void refused(const struct ibv_ah_attr *av)
{
	refused_with(EINVAL, av);
}

static void (*body)(void);

static int run_body(void)
{
	body();
	exit(0); /* as programs end */
}

/* What f logs is in `text`. */
static void log_of(void (*f)(void))
{
	int status;

	body = f;
	status = kit_said("stderr", NULL, run_body, text, sizeof(text));
	if (status)
		fail_msg("it ended with 0x%x: %s", (unsigned)status, text);
}

static void one_line(const char *words)
{
	const char *end = strchr(text, '\n');

	if (!end || end[1] || !strstr(text, words))
		fail_msg("not one line with \"%s\": %s", words, text);
}

static void client_without(void)
{
	open_qp();
}

static void tidy_client_without(void)
{
	struct ibv_cq *cq;
	struct ibv_pd *pd;

	open_qp();
	cq = qp->send_cq;
	pd = qp->pd;
	need(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd));
}

static void the_client_hears_at_its_end(void **state)
{
	static void (*const ways[])(void) = {client_without, tidy_client_without};
	char words[100];

	(void)state;
	for (int i = 0; i < 2; i++) {
		log_of(ways[i]);
		snprintf(words, sizeof(words), "QP 0x%06x ends in INIT: it was never connected; " MISSED,
			 *told_qpn);
		one_line(words);
	}
}

static void client_that_asked(void)
{
	union ibv_gid gid;

	open_qp();
	need(!ibv_query_gid(ctx, 1, 0, &gid));
}

static void client_that_asked_for_an_entry(void)
{
	struct ibv_gid_entry e;

	open_qp();
	need(!ibv_query_gid_ex(ctx, 1, 0, &e, 0));
}

static void client_that_asked_for_all(void)
{
	struct ibv_gid_entry e[8];

	open_qp();
	need(ibv_query_gid_table(ctx, e, 8, 0) > 0);
}

static void client_that_never_began(void)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RESET};

	open_qp();
	need(!ibv_modify_qp(qp, &a, IBV_QP_STATE));
}

/* It gives up since its region is refused. */
static void client_that_was_refused(void)
{
	open_qp();
	need(!ibv_reg_mr(qp->pd, NULL, 4096, 0));
}

static void who_was_refused_hears_that_only(void **state)
{
	(void)state;
	log_of(client_that_was_refused);
	one_line("ibv_reg_mr: ");
	assert_null(strstr(text, MISSED));
}

static void others_hear_nothing(void **state)
{
	static void (*const ways[])(void) = {client_that_asked, client_that_asked_for_an_entry,
					     client_that_asked_for_all, client_that_never_began};

	(void)state;
	for (int i = 0; i < 4; i++) {
		log_of(ways[i]);
		assert_string_equal(text, "");
	}
}

static void no_address_at_all(void)
{
	struct ibv_ah_attr av = {.port_num = 1};

	open_qp();
	refused(&av);
}

static void no_address_but_asked(void)
{
	client_that_asked();
	refused(&(struct ibv_ah_attr){.port_num = 1});
	refused(&(struct ibv_ah_attr){.port_num = 1, .is_global = 1});
}

static void the_server_hears_of_both_mistakes(void **state)
{
	(void)state;
	log_of(no_address_at_all);
	one_line("is_global is 0, but RoCE requires a GRH; grh.dgid is zero");
	one_line(MISSED); /* and not again at the end */
	one_line("needs verbena run --link=infiniband at both ends (EINVAL)");
	log_of(no_address_but_asked);
	assert_null(strstr(text, MISSED));
	assert_non_null(strstr(text, ": grh.dgid is zero"));
	assert_non_null(strstr(text, "read an empty entry of its GID table"));
}

static void only_no_grh(void)
{
	struct ibv_ah_attr av = address();

	client_that_asked();
	av.is_global = 0;
	refused(&av);
}

static void no_index(void)
{
	struct ibv_ah_attr av = address();

	open_qp();
	av.grh.sgid_index = (uint8_t)-1;
	refused(&av);
}

static void index_beyond(void)
{
	struct ibv_ah_attr av = address();

	client_that_asked();
	av.grh.sgid_index = 8;
	refused(&av);
}

/* Both ends were started with the index of an empty entry, and the peer sent what it read there. */
static void index_empty_at_both(void)
{
	struct ibv_ah_attr av = {.is_global = 1, .port_num = 1, .grh.sgid_index = 6};

	client_that_asked();
	refused_with(ENODATA, &av);
}

static void no_port(void)
{
	struct ibv_ah_attr av = address();

	client_that_asked();
	av.port_num = 2;
	refused(&av);
}

static void index_empty(void)
{
	struct ibv_ah_attr av = address();

	client_that_asked();
	av.grh.sgid_index = 4;
	refused_with(ENODATA, &av);
}

static void what_is_wrong_is_named(void **state)
{
	char words[100];

	(void)state;
	log_of(only_no_grh);
	one_line("is_global is 0, but RoCE requires a GRH; grh.dgid is set, so set is_global to 1 (EINVAL)");
	log_of(no_index);
	one_line("GID index 255 is out of range: the table has 8 entries, 0 to 7; the program set sgid_index "
		 "to -1, so it chose no index; " MISSED);
	log_of(index_beyond);
	one_line("GID index 8 is out of range: the table has 8 entries, 0 to 7 (EINVAL)");
	log_of(index_empty);
	one_line("sgid_index 4 is an empty entry of the GID table; entries 0 to 3 are filled: 0 = ");
	one_line(", 3 = ");
	log_of(index_empty_at_both);
	snprintf(words, sizeof(words), "QP 0x%06x: sgid_index 6 is an empty entry", *told_qpn);
	one_line(words);
	assert_null(strstr(text, "grh.dgid is zero"));
	log_of(no_port);
	snprintf(words, sizeof(words), "QP 0x%06x: port 2 does not exist", *told_qpn);
	one_line(words);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_client_hears_at_its_end),
	    cmocka_unit_test(who_was_refused_hears_that_only),
	    cmocka_unit_test(others_hear_nothing),
	    cmocka_unit_test(the_server_hears_of_both_mistakes),
	    cmocka_unit_test(what_is_wrong_is_named),
	};

	told_qpn = mmap(NULL, sizeof(*told_qpn), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return told_qpn == MAP_FAILED ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
