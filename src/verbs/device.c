/* The devices as programs find them: names, identity, the list of them. */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/settings.h"
#include "iba/profile.h"
#include "host/devices.h"
#include "verbs/verbs.h"

static_assert(sizeof(struct ibv_device) == 664, "ABI");
static_assert(offsetof(struct vb_device, verbs_device_ops) == 664, "where vendor libraries look");

/* Each device is a row, as long as the process lives, so that programs may compare pointers and use names
 * after they have freed the list, as they may with other libraries.  What it says of itself (host/devices.h)
 * is settled with the first list. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
struct vb_device vb_devices[VB_MAX_DEVICES + 1]; /* the first row without a name ends them; set once */

static uint32_t setting(const char *name, uint32_t unset, uint32_t max)
{
	const char *s = secure_getenv(name);
	char *end;
	unsigned long v;

	if (!s || !*s)
		return unset;
	errno = 0;
	v = strtoul(s, &end, 0);
	if (!errno && !*end && *s != '-' && v <= max)
		return (uint32_t)v;
	vb_log_complain("%s=%s is not a number from 0 to 0x%x: the device uses 0x%x", name, s, max, unset);
	return unset;
}

uint32_t vb_device_vendor_id(void)
{
	return setting("VERBENA_VENDOR_ID", vb_profile()->vendor_id, 0xffffff);
}

uint32_t vb_device_vendor_part(void)
{
	return setting("VERBENA_VENDOR_PART_ID", vb_profile()->vendor_part, UINT32_MAX);
}

static void describe(struct vb_device *d, uint32_t index)
{
	char name[VB_DEVICE_NAME_MAX], file[VB_DEVICE_NAME_MAX];

	d->index = index;
	d->guid = vb_devices_guid(index);
	vb_devices_name(name, index);
	vb_devices_file(file, index);
	strcpy(d->ibv.name, name);
	strcpy(d->ibv.dev_name, file);
	d->ibv.node_type = IBV_NODE_CA;
	d->ibv.transport_type = IBV_TRANSPORT_IB;
	snprintf(d->ibv.dev_path, sizeof(d->ibv.dev_path), "/sys/class/infiniband_verbs/%s", file);
	snprintf(d->ibv.ibdev_path, sizeof(d->ibv.ibdev_path), "/sys/class/infiniband/%s", name);
}

static void describe_all(void)
{
	for (uint32_t i = 0; i < vb_devices_count(); i++)
		describe(&vb_devices[i], i);
}

struct vb_device *vb_device_row(uint32_t index)
{
	pthread_once(&once, describe_all);
	return &vb_devices[index];
}

#undef ibv_get_device_list
VB_EXPORT VB_OBJECT(struct ibv_device **, ibv_get_device_list, (num_devices), int *num_devices)
{
	const int n = (int)vb_devices_count();
	struct ibv_device **list = calloc((size_t)n + 1, sizeof(*list));

	if (num_devices)
		*num_devices = list ? n : 0;
	if (!list) {
		errno = vb_refuse_memory("ibv_get_device_list");
		return NULL;
	}
	vb_settings_check();
	pthread_once(&once, describe_all);
	for (int i = 0; i < n; i++)
		list[i] = &vb_devices[i].ibv;
	vb_live_enter(list, VB_LIVE_DEVICES);
	return list;
}

VB_EXPORT VB_NOTHING(ibv_free_device_list, (list), struct ibv_device **list)
{
	if (list && !vb_live_leave("ibv_free_device_list", list, VB_LIVE_DEVICES))
		free(list); /* the rows stay */
}

VB_EXPORT const char *ibv_get_device_name(struct ibv_device *dev)
{
	return dev->name;
}

VB_EXPORT __be64 ibv_get_device_guid(struct ibv_device *dev)
{
	return ((struct vb_device *)dev)->guid;
}

/* The kernel does not know the devices, so they have no index there: -1 says so, and keeps programs from
 * asking the kernel about a device of that index. */
VB_EXPORT int ibv_get_device_index(struct ibv_device *dev)
{
	(void)dev;
	return -1;
}
