#include "iba/loan.h"

#include <string.h>

#include "base/lock.h"

void vb_loan_cut(struct vb_loan *l, const struct ibv_sge *sge, uint32_t num_sge, uint64_t off, uint32_t n)
{
	l->num = 0;
	l->length = n;
	for (uint32_t i = 0; i < num_sge && n; i++) {
		struct ibv_sge *to = &l->piece[l->num];

		if (off >= sge[i].length) {
			off -= sge[i].length;
			continue;
		}
		*to = (struct ibv_sge){sge[i].addr + off, sge[i].length - (uint32_t)off, sge[i].lkey};
		to->length = to->length < n ? to->length : n;
		n -= to->length;
		off = 0;
		l->num++;
	}
}

void vb_loan_encode(uint8_t *payload, const struct vb_loan *l)
{
	memcpy(payload, &l->leave, sizeof l->leave);
	memcpy(payload + sizeof l->leave, l->piece, l->num * sizeof *l->piece);
}

const char *vb_loan_decode(struct vb_loan *l, struct vb_pkt *p)
{
	uint32_t bytes = p->payload_len - (uint32_t)sizeof l->leave;
	uint64_t length = 0;

	if (!(p->op->bits & VB_OP_SEND))
		return "it refers to the sender's memory but is not a SEND";
	if (p->payload_len < sizeof l->leave || bytes % sizeof *l->piece || bytes > sizeof l->piece)
		return "its list of the sender's memory is truncated or too long";
	memcpy(&l->leave, p->payload, sizeof l->leave);
	memcpy(l->piece, p->payload + sizeof l->leave, bytes);
	l->num = (uint32_t)(bytes / sizeof *l->piece);
	for (uint32_t i = 0; i < l->num; i++) {
		if (!l->piece[i].length)
			return "its list of the sender's memory has an empty piece";
		length += l->piece[i].length;
	}
	if (!length || length > VB_LOAN_MOST)
		return "its list of the sender's memory is empty or covers too many bytes";
	l->length = (uint32_t)length;
	p->loan = l;
	p->payload = NULL;
	p->payload_len = l->length;
	return NULL;
}
