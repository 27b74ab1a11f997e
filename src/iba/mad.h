/* Management datagrams (IBTA volume 1, 13.4): 256 bytes, of which the first 24 are the same in all classes.
 * They travel as UD packets between the QP1s of two ports, with the Q_Key below. */
#ifndef VB_IBA_MAD_H
#define VB_IBA_MAD_H

#include <stdbool.h>
#include <stdint.h>

#define VB_MAD_LEN  256
#define VB_MAD_DATA 24 /* where what the class says begins */

#define VB_GSI_QPN  1u
#define VB_GSI_QKEY 0x80010000u

enum {
	VB_MAD_BASE_VERSION = 1,
	VB_MAD_CLASS_CM = 0x07,
	VB_MAD_CM_VERSION = 2,
	VB_MAD_SEND = 0x03, /* method */
};

struct vb_mad_head {
	uint8_t base_version;
	uint8_t mgmt_class;
	uint8_t class_version;
	uint8_t method;
	uint16_t status;
	uint64_t tid;
	uint16_t attribute;
	uint32_t modifier;
};

/* Writes the first VB_MAD_DATA bytes, reserved ones as 0, and reads them. */
void vb_mad_head_put(uint8_t mad[VB_MAD_LEN], const struct vb_mad_head *h);
void vb_mad_head_get(const uint8_t mad[VB_MAD_LEN], struct vb_mad_head *h);

#endif
