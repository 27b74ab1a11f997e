/* What was posted happens once, in order: a simple model of two queue pairs that are connected to one
 * another, against which their completions and every byte of their memory are held.
 *
 * Of an unreliable connection (UC) what arrives is what was sent, whole messages, in the order in which they
 * were sent and once, unless the wire changes that order or doubles packets; and nothing is missing of which
 * neither the wire nor a count of drops knows. */
#ifndef VB_TESTS_MODEL_H
#define VB_TESTS_MODEL_H

#include "sim.h"

enum {
	OPS = 120,	     /* most of them per direction */
	SOURCE = 64 << 10,   /* constant bytes that are sent */
	TARGET = 48 << 10,   /* what the peer reads, writes and counts in */
	SINK = 6 << 20,	     /* where READs and receives land; handed out once */
	MAX_LEN = 12 << 10,  /* of most requests, */
	LENT_LEN = 40 << 10, /* and of a few SENDs, so that they are lent where that can be */
	RECV_WR = 0x1000000, /* wr_ids of receives begin there */
};

/* A send completion that is to come, and where a READ's bytes are then. */
struct expected_wc {
	struct ibv_wc wc;
	struct ibv_sge sge[4];
	int num_sge;
};

/* A receive WQE as posted, or a message as sent. */
struct recv_wqe {
	uint64_t wr_id;
	uint32_t num_sge;
	struct ibv_sge sge[4];
};

struct message {
	bool imm_write;
	uint32_t flags, imm, len;
	uint8_t *data;
	unsigned write; /* UC, with imm_write: which of the target's writes */
};

/* UC: what somebody wrote to a target, perhaps. */
struct write {
	uint32_t off, len;
	uint8_t *data;
	bool certain; /* it has arrived, and nothing that was posted before it can arrive any more */
};

/* A READ whose answer may still be on its way: until a fence, what it reads must not change (it may be
 * executed again after later requests). */
struct open_read {
	uint32_t off, len;
};

struct side {
	uint8_t *source, *target, *sink;  /* the memory */
	uint8_t *target_want, *sink_want; /* what the model says */
	uint8_t *target_left;		  /* what the target was when its queue pair was destroyed */
	uint32_t source_key, target_key, sink_key;
	uint32_t sink_used;
	/* as sender */
	unsigned posted, done; /* requests; by completions */
	uint64_t next_wr;
	struct expected_wc *wcs; /* expected send completions */
	unsigned nwcs, wcs_seen;
	struct message *msgs;	  /* messages that the peer will receive */
	unsigned nmsgs, received; /* received: by the peer */
	struct open_read *reads;
	unsigned nreads;
	/* as receiver */
	struct recv_wqe *recvs;
	unsigned nrecvs, recvs_used;
	struct write *writes; /* UC: what may have come to the target, instead of target_want */
	unsigned nwrites, arrived;
	/* once its connection has ended */
	bool gone;     /* its program makes no call any more */
	bool may_fail; /* the other end may be gone */
	bool failed;   /* a request has failed: all later ones are flushed, in order */
	unsigned next_flushed;
};

struct model {
	struct sim *s;
	struct side side[2];
	uint32_t sge_max, ops;
};

/* Wires, queues and limits by seed. */
struct sim_cfg model_cfg(uint64_t seed);
/* Memory and keys for a pair that was just made; ops: requests for either direction, OPS at most. */
void model_init(struct model *m, struct sim *s, uint32_t ops);
void model_fini(struct model *m);
/* From now on that end neither places nor collects, as when the kernel lets it no more. */
void model_deny(struct model *m, unsigned i);
/* A program posts some requests, and now and then receives.  true: it did something. */
bool model_act(struct model *m);
/* Both programs poll until there is nothing. */
void model_poll(struct model *m);
bool model_finished(const struct model *m);
/* After the last completion: memory and queue pairs are as they should be. */
void model_check_end(struct model *m);
/* For the message of a test that got stuck. */
void model_say(const struct model *m, char *buf, size_t size);

/* The other end of that side goes now: it may fail, but nothing that was posted may be lost. */
void model_may_fail(struct model *m, unsigned i);
/* Its program ends, or has destroyed the queue pair: nobody touches that side's memory from then on. */
void model_gone(struct model *m, unsigned i);
void model_left(struct model *m, unsigned i);

#endif
