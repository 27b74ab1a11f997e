/* Which network interfaces are named for the wire to other hosts, and which path MTU fits theirs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <infiniband/verbs.h>

#include "host/netdev.h"
#include "host/netif.h"

static struct vb_netdevs d;
static bool all;
static char wrong[300];

static void parse(const char *s)
{
	if (!vb_netdevs_parse(s, &d, &all, wrong, sizeof(wrong)))
		fail_msg("%s", wrong);
}

static void has(uint32_t k, const char *name, uint32_t n)
{
	assert_string_equal(d.at[k].name, name);
	assert_int_equal(d.at[k].n, n);
}

static void chosen(uint32_t k, uint32_t i, const char *address)
{
	uint8_t gid[16];

	assert_int_equal(inet_pton(AF_INET6, address, gid), 1);
	assert_memory_equal(d.at[k].gid[i], gid, 16);
}

static void refused(const char *s, const char *words)
{
	if (vb_netdevs_parse(s, &d, &all, wrong, sizeof(wrong)))
		fail_msg("%s is taken", s);
	if (strncmp(wrong, "VERBENA_NETDEV=", 15) || !strstr(wrong, words))
		fail_msg("%s: no \"%s\": %s", s, words, wrong);
}

static void interfaces_are_devices_in_their_order(void **state)
{
	(void)state;
	parse("eth1,eth0");
	assert_false(all);
	assert_int_equal(d.n, 2);
	has(0, "eth1", 0);
	has(1, "eth0", 0);
	parse("all");
	assert_true(all);
	assert_int_equal(d.n, 0);
}

static void addresses_are_chosen(void **state)
{
	(void)state;
	parse("eth0@10.0.0.5@fd00::7,eth1,eth0@10.0.0.6,eth0@10.0.0.5");
	assert_int_equal(d.n, 2);
	has(0, "eth0", 3);
	chosen(0, 0, "::ffff:10.0.0.5");
	chosen(0, 1, "fd00::7");
	chosen(0, 2, "::ffff:10.0.0.6");
	has(1, "eth1", 0);
}

static void what_is_wrong_is_said(void **state)
{
	char many[400] = "i0";

	(void)state;
	refused("", "\"\" is not the name");
	refused("eth0,", "\"\" is not the name");
	refused("eth0,,eth1", "\"\" is not the name");
	refused("averyveryverylongname", "\"averyveryverylongname\" is not the name");
	refused("eth0@", "\"\" is not an IP address");
	refused("eth0@if5", "\"if5\" is not an IP address");
	refused("eth0@10.0.0", "\"10.0.0\" is not an IP address");
	refused("eth0@1.1.1.1@2.2.2.2@3.3.3.3@4.4.4.4@5.5.5.5", "at most 4 addresses");
	for (int i = 1; i < VB_MAX_DEVICES; i++)
		snprintf(many + strlen(many), sizeof(many) - strlen(many), ",i%d", i);
	parse(many);
	assert_int_equal(d.n, VB_MAX_DEVICES);
	strcat(many, ",one");
	refused(many, "at most 16 interfaces");
	memset(many, 'x', sizeof(many) - 1);
	many[sizeof(many) - 1] = 0;
	refused(many, "is not the name"); /* and all of it fits */
}

static void path_mtus_fit_interfaces(void **state)
{
	static const struct {
		uint32_t mtu, path;
	} rows[] = {{0, IBV_MTU_256},	  {576, IBV_MTU_256},	{607, IBV_MTU_256},   {608, IBV_MTU_512},
		    {1280, IBV_MTU_1024}, {1119, IBV_MTU_512},	{1120, IBV_MTU_1024}, {1500, IBV_MTU_1024},
		    {2143, IBV_MTU_1024}, {2144, IBV_MTU_2048}, {4191, IBV_MTU_2048}, {4192, IBV_MTU_4096},
		    {9000, IBV_MTU_4096}, {65536, IBV_MTU_4096}};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (vb_netif_path_mtu(rows[i].mtu) != rows[i].path)
			fail_msg("MTU %u: %u", rows[i].mtu, vb_netif_path_mtu(rows[i].mtu));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(interfaces_are_devices_in_their_order),
	    cmocka_unit_test(addresses_are_chosen),
	    cmocka_unit_test(what_is_wrong_is_said),
	    cmocka_unit_test(path_mtus_fit_interfaces),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
