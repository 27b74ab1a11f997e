/* A loan: what the packet of a large SEND carries in place of the bytes themselves, on wires with direct
 * placement.  It says where they stand in the sender's process, as the pieces of the request's list, by
 * L_Keys of the sender's table, and the receiver collects them from there (transport/lend.c).
 *
 * It travels as the packet's payload, between processes of one host, so in the host's byte order: the leave,
 * then the pieces. */
#ifndef VB_IBA_LOAN_H
#define VB_IBA_LOAN_H

#include <stdint.h>

#include <infiniband/verbs.h>

#include "iba/limits.h"
#include "iba/pkt.h"

#define VB_LOAN_MOST (256u << 10) /* bytes of one packet, a multiple of every wire's MTU */

struct vb_loan {
	uint32_t leave; /* of the sender's QP (vb_shown_qp.may), under which it was lent */
	uint32_t num;
	uint32_t length; /* of all pieces */
	struct ibv_sge piece[VB_MAX_SGE];
};

/* The pieces of a request's list that hold the bytes [off, off + n); l->length is n afterwards. */
void vb_loan_cut(struct vb_loan *l, const struct ibv_sge *sge, uint32_t num_sge, uint64_t off, uint32_t n);

/* Bytes of the payload, and writing them. */
static inline uint32_t vb_loan_size(const struct vb_loan *l)
{
	return (uint32_t)(sizeof l->leave + l->num * sizeof *l->piece);
}
void vb_loan_encode(uint8_t *payload, const struct vb_loan *l);

/* Reads the payload of p, once, since its sender may change it, and checks it whole: afterwards p->loan is l,
 * and p->payload_len is what it lends.  Else says what is wrong with it. */
const char *vb_loan_decode(struct vb_loan *l, struct vb_pkt *p);

#endif
