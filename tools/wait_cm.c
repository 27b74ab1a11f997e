/* Identifiers of rdma_cm. */
#include "waits.h"

void vb_wait_ids(struct vb_waits *l)
{
	(void)l;
}
