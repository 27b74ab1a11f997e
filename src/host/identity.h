/* What the device is called and says of itself: the library answers it, and the preloaded view shows it. */
#ifndef VB_HOST_IDENTITY_H
#define VB_HOST_IDENTITY_H

#include <stdint.h>

#define VB_VERSION     "0.1.0"
#define VB_FW_VER      "verbena " VB_VERSION
#define VB_DEVICE_NAME "verbena0"
#define VB_UVERBS_NAME "uverbs0"

/* The link, as the standard encodes it and as the kernel writes it: four lanes of 25 Gb/s. */
#define VB_LINK_WIDTH	 2
#define VB_LINK_SPEED	 32
#define VB_LINK_RATE	 "100 Gb/sec (4X EDR)"
#define VB_LINK_HUNDREDS 1000 /* the same in 100 Mb/s */

#define VB_PORT_CAPS IBV_PORT_IP_BASED_GIDS

/* The device's GUID, in network order: the same in every process of a network namespace and after every boot,
 * another on every machine. */
uint64_t vb_identity_guid(const char *ifname);

#endif
