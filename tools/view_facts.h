/* What the view says of the device: the same as the library answers, from the same code. */
#ifndef VB_TOOLS_VIEW_FACTS_H
#define VB_TOOLS_VIEW_FACTS_H

#include <stdint.h>

#include "iba/limits.h"

struct vb_view_facts {
	char netdev[16]; /* of GID 0 */
	char ndev[VB_GID_TABLE][16];
	uint8_t guid[8];
	uint8_t gids[VB_GID_TABLE][16];
};

/* Found out once in a process. */
const struct vb_view_facts *vb_view_facts(void);

#endif
