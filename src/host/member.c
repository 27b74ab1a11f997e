/* Members: adapters that hold something together find one another by the abstract names that each binds.  The
 * kernel keeps the list: a name is gone with its process, however that ends.  Nobody connects to these
 * sockets; contact is made with the adapters that the names speak of. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "host/private.h"

/* One thing that this adapter holds a part of; guarded by qpn_lock. */
struct member {
	struct vb_list node;
	uint32_t domain;
	uint32_t refs;
	int sock;
};

static struct member *find(struct vb_adapter *a, uint32_t domain)
{
	vb_list_each (n, &a->members) {
		struct member *m = vb_list_entry(n, struct member, node);

		if (m->domain == domain)
			return m;
	}
	return NULL;
}

/* The name without the number of the member. */
static int prefix(char *to, size_t size, uint32_t domain)
{
	return snprintf(to, size, "verbena/1/pd/%08x/", domain);
}

static int bind_name(int *sock, uint32_t domain, uint32_t number)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	int n = prefix(sa.sun_path + 1, sizeof(sa.sun_path) - 1, domain), err;

	n += snprintf(sa.sun_path + 1 + n, sizeof(sa.sun_path) - 1 - (size_t)n, "%u", number);
	*sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (*sock < 0)
		return errno;
	if (!bind(*sock, (struct sockaddr *)&sa,
		  (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)))
		return 0;
	err = errno;
	close(*sock);
	return err;
}

/* Under qpn_lock. */
static int join(struct vb_adapter *a, uint32_t domain)
{
	struct member *m = find(a, domain);
	int err;

	if (m) {
		m->refs++;
		return 0;
	}
	m = calloc(1, sizeof(*m)); /* vb_member_leave(), vb_members_free() */
	if (!m)
		return ENOMEM;
	err = bind_name(&m->sock, domain, a->numbers[0].number);
	if (err) {
		free(m);
		return err;
	}
	VB_FAULT_POINT("member's name bound");
	m->domain = domain;
	m->refs = 1;
	vb_list_append(&a->members, &m->node);
	return 0;
}

int vb_member_join(struct vb_adapter *a, uint32_t domain)
{
	int err;

	if (vb_adapter_dead(a))
		return EIO;
	pthread_mutex_lock(&a->qpn_lock);
	err = join(a, domain);
	pthread_mutex_unlock(&a->qpn_lock);
	return err;
}

void vb_member_leave(struct vb_adapter *a, uint32_t domain)
{
	struct member *m;

	if (vb_adapter_dead(a))
		return;
	pthread_mutex_lock(&a->qpn_lock);
	m = find(a, domain);
	if (m && !--m->refs) {
		vb_list_unlink(&m->node);
		close(m->sock);
		free(m);
	}
	pthread_mutex_unlock(&a->qpn_lock);
}

/* One more number; 0 or ENOMEM. */
static int add(uint32_t **numbers, uint32_t *count, uint32_t number)
{
	uint32_t *more = *count & (*count - 1)
			     ? *numbers /* room up to the next power of two */
			     : realloc(*numbers, (*count ? 2ull * *count : 1) * sizeof(*more));

	if (!more)
		return ENOMEM;
	*numbers = more;
	more[(*count)++] = number;
	return 0;
}

int vb_member_list(struct vb_adapter *a, uint32_t domain, uint32_t **numbers, uint32_t *count)
{
	FILE *f = fopen("/proc/net/unix", "re");
	char name[64], *line = NULL, *at;
	size_t size = 0;
	int err = 0, n;

	*numbers = NULL;
	*count = 0;
	if (!f)
		return errno;
	name[0] = '@';
	n = 1 + prefix(name + 1, sizeof(name) - 1, domain);
	while (!err && getline(&line, &size, f) > 0) {
		unsigned long number;

		at = strchr(line, '@');
		if (!at || strncmp(at, name, (size_t)n))
			continue;
		number = strtoul(at + n, NULL, 10);
		if (number && number < VB_ADAPTERS && number != a->numbers[0].number)
			err = add(numbers, count, (uint32_t)number);
	}
	if (!err && ferror(f))
		err = EIO;
	free(line);
	fclose(f);
	if (err) {
		free(*numbers);
		*numbers = NULL;
	}
	return err;
}

void vb_members_close(struct vb_adapter *a)
{
	vb_list_each (n, &a->members)
		close(vb_list_entry(n, struct member, node)->sock);
}

void vb_members_free(struct vb_adapter *a)
{
	struct vb_list *n;

	while ((n = vb_list_pop(&a->members)))
		free(vb_list_entry(n, struct member, node));
}
