/* The devices that ids are bound to.  Each is opened once for all ids, by whoever needs it first, and stays
 * open as long as the process, with one protection domain for programs that bring none (rdma_create_qp(3)).
 * One that is lost, since the program has closed descriptors that belong to it, is followed by another.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include "rdmacm/call.h"
#include "rdmacm/rdmacm.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards the list and what is in it */
static struct vb_rdma_device *devices;
static unsigned forks; /* changes in a child only, before it has threads */

/* A child's devices are its parent's no more, and what was opened before is dead to it: it begins anew.  The
 * old list is left where it is: ids of the parent's may lie about which show it. */
static void child(void)
{
	forks++;
	devices = NULL;
	pthread_mutex_init(&mutex, NULL);
	vb_rdma_channels_forked();
}

__attribute__((constructor)) static void begin(void)
{
	pthread_atfork(NULL, NULL, child);
}

unsigned vb_rdma_forks(void)
{
	return forks;
}

static uint8_t depth(int n)
{
	return (uint8_t)(n < 0 ? 0 : n > RDMA_MAX_INIT_DEPTH ? RDMA_MAX_INIT_DEPTH : n);
}

/* Mutex held. */
static int open_one(struct ibv_device *device, int index, struct vb_rdma_device **out)
{
	struct vb_rdma_device *d = calloc(1, sizeof *d);
	struct ibv_device_attr attr;
	int err;

	if (!d)
		return ENOMEM;
	d->index = index;
	d->verbs = ibv_open_device(device); /* which says why it fails */
	if (!d->verbs) {
		err = errno ? errno : ENODEV;
		goto free_it;
	}
	err = ibv_query_device(d->verbs, &attr);
	if (err)
		goto close_it;
	d->pd = ibv_alloc_pd(d->verbs);
	if (!d->pd) {
		err = errno ? errno : ENOMEM;
		goto close_it;
	}
	d->max_initiator_depth = depth(attr.max_qp_init_rd_atom);
	d->max_responder_resources = depth(attr.max_qp_rd_atom);
	d->next = devices;
	devices = d;
	*out = d;
	return 0;

close_it:
	ibv_close_device(d->verbs);
free_it:
	free(d);
	return err;
}

/* Mutex held. */
static struct vb_rdma_device *known(int index)
{
	struct vb_rdma_device *d = devices;

	while (d && (d->index != index || vb_cm_device_lost(d->verbs)))
		d = d->next;
	return d;
}

int vb_rdma_device_get(int index, struct vb_rdma_device **out)
{
	struct ibv_device **list = NULL, *device = NULL;
	int err = 0, n = 0;

	pthread_mutex_lock(&mutex);
	*out = known(index);
	if (*out)
		goto unlock;
	list = ibv_get_device_list(&n);
	if (!list) {
		err = errno ? errno : ENOMEM;
		goto unlock;
	}
	for (int i = 0; i < n && !device; i++)
		if (vb_cm_device_index(list[i]) == index)
			device = list[i];
	if (device)
		err = open_one(device, index, out);
	else
		err = vb_cm_refuse(ENODEV, "rdma_cm",
				   "ibv_get_device_list() does not return device %d, to which an id is bound",
				   index);
unlock:
	pthread_mutex_unlock(&mutex);
	if (list)
		ibv_free_device_list(list);
	return err;
}

int vb_rdma_device_xrcd(struct vb_rdma_device *d, struct ibv_xrcd **out)
{
	struct ibv_xrcd_init_attr attr = {
	    .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
	    .fd = -1,
	    .oflags = O_CREAT,
	};
	int err = 0;

	pthread_mutex_lock(&mutex);
	if (!d->xrcd) {
		d->xrcd = ibv_open_xrcd(d->verbs, &attr);
		err = d->xrcd ? 0 : errno;
	}
	*out = d->xrcd;
	pthread_mutex_unlock(&mutex);
	return err;
}

/* All of them, opened, in the order of the list; *n is how many. */
static int open_all(struct ibv_context ***out, int *n)
{
	struct ibv_device **list = ibv_get_device_list(n);
	struct vb_rdma_device *d;
	int err = 0;

	if (!list)
		return errno ? errno : ENOMEM;
	if (!*n)
		err = vb_cm_refuse(ENODEV, "rdma_get_devices", "no device found");
	*out = err ? NULL : calloc((size_t)*n + 1, sizeof **out);
	if (!err && !*out)
		err = ENOMEM;
	for (int i = 0; !err && i < *n; i++) {
		err = vb_rdma_device_get(vb_cm_device_index(list[i]), &d);
		if (!err)
			(*out)[i] = d->verbs;
	}
	if (err)
		free(*out);
	ibv_free_device_list(list);
	return err;
}

VB_EXPORT struct ibv_context **rdma_get_devices(int *num_devices)
{
	struct ibv_context **all = NULL;
	int was = vb_rdma_enter("rdma_get_devices"), n = 0, err = open_all(&all, &n);

	if (num_devices)
		*num_devices = err ? 0 : n;
	VB_RDMA_GIVE(num_devices);
	return vb_rdma_leave_object(was, err, all);
}

/* The devices stay open "while the librdmacm is loaded" (rdma_get_devices(3)). */
VB_EXPORT VB_RDMA_NOTHING(rdma_free_devices, (list), struct ibv_context **list)
{
	free(list);
}
