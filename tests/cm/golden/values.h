/* What speaker.c gives to rdma_cm's calls, and test_golden.c expects to find in the MADs. */
#ifndef VB_TESTS_CM_GOLDEN_VALUES_H
#define VB_TESTS_CM_GOLDEN_VALUES_H

#define SAID_REQ  "shall we talk?"
#define SAID_REP  "gladly"
#define SAID_REJ  "not today"
#define SAID_SIDR "where are you?"
#define SAID_HERE "over here"

enum {
	AT_PORT = 7471,
	ACTIVE_QPN = 0x010101, /* the first connection's; the next are counted from it */
	PASSIVE_QPN = 0x020202,
	/* of the active end */
	ASK_RESOURCES = 3, /* responder_resources */
	ASK_DEPTH = 5,	   /* initiator_depth */
	ASK_RETRIES = 6,
	ASK_RNR = 2,
	/* of the passive end */
	GIVE_RESOURCES = 4,
	GIVE_DEPTH = 2,
	GIVE_RNR = 1,
	/* in the story "options" */
	TOS = 0x68,
	ACK_TIMEOUT = 21,
	ECE_VENDOR = 0x1234,
	ECE_OPTIONS = 0x0badcafe,
};

#endif
