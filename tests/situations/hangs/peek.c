/* What the library has of a CQ; apart, since its headers have names of their own. */
#include "obj/cq.h"

uint32_t hang_entries(struct ibv_cq *cq);

uint32_t hang_entries(struct ibv_cq *cq)
{
	return atomic_load(&vb_cq(cq)->head) - atomic_load(&vb_cq(cq)->tail);
}
