/* The name and the properties of the device, which the library returns and the preloaded view shows. */
#ifndef VB_HOST_IDENTITY_H
#define VB_HOST_IDENTITY_H

#include <stddef.h>
#include <stdint.h>

#define VB_FW_VER      "verbena " VB_VERSION /* the file VERSION */
#define VB_DEVICE_NAME "verbena0"	     /* of the first device, unless a setting has another */
#define VB_UVERBS_STEM "uverbs"

/* The link, as the standard encodes it and as the kernel writes it: four lanes of 25 Gb/s. */
#define VB_LINK_WIDTH	 2
#define VB_LINK_SPEED	 32
#define VB_LINK_RATE	 "100 Gb/sec (4X EDR)"
#define VB_LINK_HUNDREDS 1000 /* the same in 100 Mb/s */

#define VB_PORT_CAPS	IBV_PORT_IP_BASED_GIDS
#define VB_PORT_CAPS_IB (IBV_PORT_SYS_IMAGE_GUID_SUP | IBV_PORT_CLIENT_REG_SUP)
#define VB_SM_LID \
	1 /* no device's: nobody answers there, but programs take 0 for a subnet without a manager */

/* A number that is the same in every process of a network namespace, and another one in every other, on every
 * other host, be it a clone of this one's image, and after every boot. */
uint64_t vb_identity_chance(void);
/* Mixes n bytes into h (0 begins), and spreads them over it. */
uint64_t vb_identity_mix(uint64_t h, const void *data, size_t n);

#endif
