#include "iba/mad.h"

#include <endian.h>
#include <string.h>

/* Where the fields of the head stand (IBTA volume 1, 13.4.3). */
enum {
	BASE_VERSION = 0,
	MGMT_CLASS = 1,
	CLASS_VERSION = 2,
	METHOD = 3,
	STATUS = 4, /* two bytes; two more are the class's own or reserved */
	TID = 8,
	ATTRIBUTE = 16, /* two bytes, two reserved */
	MODIFIER = 20,
};

void vb_mad_head_put(uint8_t mad[VB_MAD_LEN], const struct vb_mad_head *h)
{
	uint16_t status = htobe16(h->status), attribute = htobe16(h->attribute);
	uint32_t modifier = htobe32(h->modifier);
	uint64_t tid = htobe64(h->tid);

	memset(mad, 0, VB_MAD_DATA);
	mad[BASE_VERSION] = h->base_version;
	mad[MGMT_CLASS] = h->mgmt_class;
	mad[CLASS_VERSION] = h->class_version;
	mad[METHOD] = h->method;
	memcpy(mad + STATUS, &status, sizeof(status));
	memcpy(mad + TID, &tid, sizeof(tid));
	memcpy(mad + ATTRIBUTE, &attribute, sizeof(attribute));
	memcpy(mad + MODIFIER, &modifier, sizeof(modifier));
}

void vb_mad_head_get(const uint8_t mad[VB_MAD_LEN], struct vb_mad_head *h)
{
	uint16_t status, attribute;
	uint32_t modifier;
	uint64_t tid;

	memcpy(&status, mad + STATUS, sizeof(status));
	memcpy(&tid, mad + TID, sizeof(tid));
	memcpy(&attribute, mad + ATTRIBUTE, sizeof(attribute));
	memcpy(&modifier, mad + MODIFIER, sizeof(modifier));
	*h = (struct vb_mad_head){
	    .base_version = mad[BASE_VERSION],
	    .mgmt_class = mad[MGMT_CLASS],
	    .class_version = mad[CLASS_VERSION],
	    .method = mad[METHOD],
	    .status = be16toh(status),
	    .tid = be64toh(tid),
	    .attribute = be16toh(attribute),
	    .modifier = be32toh(modifier),
	};
}
