/* Rubbish that a process writes into its own segment, where its peers read: words anywhere, and packets of
 * its own making. */
#ifndef VB_TESTS_SCRIBBLE_H
#define VB_TESTS_SCRIBBLE_H

#include <stdint.h>

enum { SCRIBBLE_PARTS = 11 };

/* Numbers that peers have, which packets then name. */
struct scribble_names {
	uint32_t qpn[8], nqpns;
	uint32_t srqn[8], nsrqns;
	uint32_t qkey;
	uint8_t mgid[16];
};

/* This process's segment. */
uint8_t *scribble_segment(void);
/* A few bytes somewhere in that part, below SCRIBBLE_PARTS; index: of a queue pair of this process. */
void scribble_word(uint8_t *seg, uint64_t *rng, int part, uint32_t index);
/* Puts a packet behind the last one of a ring: that one with a few bytes changed.  With names it often is of
 * another type or operation, to one of those that are named. */
void scribble_packet(uint8_t *seg, uint64_t *rng, const struct scribble_names *names);
/* Any number; now and then one that is likely to hurt. */
uint64_t scribble_rubbish(uint64_t *rng);

#endif
