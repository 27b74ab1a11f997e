/* The device as programs find it: its names, its identity, the list of devices. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "iba/profile.h"
#include "host/identity.h"
#include "host/netif.h"
#include "verbs/verbs.h"

static_assert(sizeof(struct ibv_device) == 664, "ABI");
static_assert(offsetof(struct vb_device, verbs_device_ops) == 664, "where vendor libraries look");

/* Each device is a row, as long as the process lives, so that programs may compare pointers and use names
 * after they have freed the list, as they may with other libraries.  Its interface is looked up again when
 * nobody holds it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* The last row has no name.  Guarded by lock while refs == 0, constant otherwise. */
struct vb_device vb_devices[] = {{.ibv = {.name = VB_DEVICE_NAME, .dev_name = VB_UVERBS_NAME}}, {.refs = 0}};

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
	vb_log(VB_LOG_WARN, "%s=%s is no number up to 0x%x: 0x%x is used", name, s, max, unset);
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

static void describe(struct vb_device *d)
{
	struct vb_gids gids;

	vb_gids_find(&gids);
	d->ibv.node_type = IBV_NODE_CA;
	d->ibv.transport_type = IBV_TRANSPORT_IB;
	snprintf(d->ibv.dev_path, sizeof(d->ibv.dev_path), "/sys/class/infiniband_verbs/%s", d->ibv.dev_name);
	snprintf(d->ibv.ibdev_path, sizeof(d->ibv.ibdev_path), "/sys/class/infiniband/%s", d->ibv.name);
	snprintf(d->netdev, sizeof(d->netdev), "%s", gids.ifname);
	d->guid = vb_identity_guid(d->netdev);
}

/* fork() while another thread was in hold(): what it described is described again. */
static void forked(void)
{
	pthread_mutex_init(&lock, NULL);
}

static void handle_fork(void)
{
	pthread_atfork(NULL, NULL, forked);
}

static void hold(struct vb_device *d)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, handle_fork);
	pthread_mutex_lock(&lock);
	if (!atomic_load(&d->refs))
		describe(d);
	atomic_fetch_add(&d->refs, 1); /* pairs with vb_device_put() */
	pthread_mutex_unlock(&lock);
}

void vb_device_put(struct vb_device *d)
{
	atomic_fetch_sub(&d->refs, 1);
}

#undef ibv_get_device_list
VB_EXPORT VB_OBJECT(struct ibv_device **, ibv_get_device_list, (num_devices), int *num_devices)
{
	const int n = sizeof(vb_devices) / sizeof(*vb_devices) - 1;
	struct ibv_device **list = calloc((size_t)n + 1, sizeof(*list));

	if (num_devices)
		*num_devices = list ? n : 0;
	if (!list) {
		errno = vb_refuse(ENOMEM, "ibv_get_device_list", "no memory for the list");
		return NULL;
	}
	for (int i = 0; i < n; i++) {
		hold(&vb_devices[i]);
		list[i] = &vb_devices[i].ibv;
	}
	return list;
}

VB_EXPORT VB_NOTHING(ibv_free_device_list, (list), struct ibv_device **list)
{
	if (!list)
		return;
	for (struct ibv_device **d = list; *d; d++)
		vb_device_put((struct vb_device *)*d);
	free(list);
}

VB_EXPORT const char *ibv_get_device_name(struct ibv_device *dev)
{
	return dev->name;
}

VB_EXPORT __be64 ibv_get_device_guid(struct ibv_device *dev)
{
	return ((struct vb_device *)dev)->guid;
}

/* The kernel does not know the device, so it has no index there: -1 says so. */
VB_EXPORT int ibv_get_device_index(struct ibv_device *dev)
{
	(void)dev;
	return -1;
}
