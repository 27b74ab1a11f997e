/* Another kind of far end than a process of this host (hca/far_null.c): what goes there is sent, and counts
 * as sent; an acknowledgement never comes, and the request fails as it does where all packets are lost. */
#include <arpa/inet.h>

#include "kit.h"

static struct kit_card cards[2];

static int talk(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(kit_open());
	struct kit_end uc, ud, rc;
	struct ibv_wc wc;

	CHECK(pd);
	for (unsigned i = 0; i < 2; i++) {
		kit_end_open_as(&uc, pd, 8, 8192, IBV_QPT_UC);
		kit_connect(&uc, &cards[i]);
		CHECK(!kit_post(&uc, IBV_WR_SEND, 1, 0, 8, NULL, 0));
		CHECK(!kit_post(&uc, IBV_WR_SEND, 2, 0, 8000, NULL, 0)); /* two packets */
		CHECK_EQ(kit_wait(&uc, 20).status, IBV_WC_SUCCESS);
		CHECK_EQ(kit_wait(&uc, 20).status, IBV_WC_SUCCESS);
		kit_end_close(&uc);

		kit_end_open_as(&ud, pd, 8, 8192, IBV_QPT_UD);
		CHECK(!kit_datagram(&ud, kit_ah(pd, &cards[i]), cards[i].qpn, 3, 0, 2000));
		CHECK_EQ(kit_wait(&ud, 20).status, IBV_WC_SUCCESS);
		kit_end_close(&ud);

		kit_end_open(&rc, pd, 8, 8192);
		kit_connect_with(&rc, &cards[i], 8, 1);
		CHECK(!kit_post(&rc, IBV_WR_SEND, 4, 0, 8, NULL, 0));
		wc = kit_wait(&rc, 20);
		CHECK_EQ(wc.status, IBV_WC_RETRY_EXC_ERR);
		kit_end_close(&rc);
	}
	return 0;
}

int main(void)
{
	static char text[8192];

	inet_pton(AF_INET6, "::ffff:192.0.2.9", cards[0].gid.raw);
	inet_pton(AF_INET6, "2001:db8::9", cards[1].gid.raw);
	for (unsigned i = 0; i < 2; i++)
		cards[i].qpn = 0x1717;
	CHECK(!kit_said("stderr", "info", talk, text, sizeof(text)), "%s", text);
	CHECK(!strstr(text, "discarded"), "%s", text);
	CHECK(strstr(text, "IBV_WC_RETRY_EXC_ERR"), "%s", text);
	return 0;
}
