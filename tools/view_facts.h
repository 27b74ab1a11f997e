/* What the view says of the devices: the same as the library answers, from the same code. */
#ifndef VB_TOOLS_VIEW_FACTS_H
#define VB_TOOLS_VIEW_FACTS_H

#include <stdbool.h>
#include <stdint.h>

#include "host/devices.h"
#include "iba/limits.h"
#include "iba/traffic.h"

struct vb_view_device {
	char name[VB_DEVICE_NAME_MAX], file[VB_DEVICE_NAME_MAX];
	struct vb_port port;
	char ndev[VB_GID_TABLE][16]; /* interfaces of the GIDs */
	uint8_t guid[8];
	uint16_t lid;		   /* 0: an Ethernet port */
	struct vb_traffic traffic; /* vb_view_facts_count() */
};

struct vb_view_facts {
	uint32_t n;
	struct vb_view_device at[VB_MAX_DEVICES];
};

/* As things stand now: asks the kernel. */
void vb_view_facts_read(struct vb_view_facts *f);
/* What the devices of this process have counted; 0 where they are not open. */
void vb_view_facts_count(struct vb_view_facts *f);

#endif
