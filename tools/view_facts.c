#include "view_facts.h"

#include <dlfcn.h>
#include <net/if.h>
#include <string.h>

static void read_one(struct vb_view_device *d, uint32_t k)
{
	uint64_t guid = vb_devices_guid(k);

	vb_devices_name(d->name, k);
	vb_devices_file(d->file, k);
	vb_devices_port(k, &d->port);
	for (uint32_t i = 0; i < d->port.gids.n; i++) {
		uint32_t ifindex = d->port.gids.ifindex[i];

		if (!ifindex || ifindex == d->port.ifindex || !if_indextoname(ifindex, d->ndev[i]))
			memcpy(d->ndev[i], d->port.ifname, sizeof(d->ndev[i]));
	}
	memcpy(d->guid, &guid, sizeof(d->guid));
	d->lid = vb_devices_infiniband() ? vb_devices_lid(k) : 0;
}

void vb_view_facts_read(struct vb_view_facts *f)
{
	vb_devices_read();
	f->n = vb_devices_count();
	for (uint32_t k = 0; k < f->n; k++)
		read_one(&f->at[k], k);
}

/* The library may have been loaded by a plugin, so that its names are not among the program's. */
void vb_view_facts_count(struct vb_view_facts *f)
{
	void *library = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);
	void (*traffic)(uint32_t, struct vb_traffic *) = NULL;
	void *found = library ? dlsym(library, "vb_view_traffic") : NULL;

	memcpy(&traffic, &found, sizeof(traffic));
	for (uint32_t k = 0; k < f->n; k++) {
		memset(&f->at[k].traffic, 0, sizeof(f->at[k].traffic));
		if (traffic)
			traffic(k, &f->at[k].traffic);
	}
	if (library)
		dlclose(library);
}
