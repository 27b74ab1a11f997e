/* What is in the view, and finding it.  Everything is composed when it is asked for; there is no tree to
 * keep. */
#include "view.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include <infiniband/verbs.h>

#include "host/identity.h"
#include "view_counters.h"
#include "view_facts.h"

/* What composes a text takes what its row needs, which may be less. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define IB     "/sys/class/infiniband"
#define DEV    IB "/@"
#define VERBS  "/sys/class/infiniband_verbs"
#define PORT   DEV "/ports/1"
#define UVERBS VERBS "/%"

#define FIRST_MINOR 192 /* as the kernel numbers uverbs devices */

typedef void text_fn(char *text, size_t size, const struct vb_view_device *d, unsigned index);

static void hex_words(char *text, size_t size, const uint8_t *bytes, unsigned words)
{
	size_t n = 0;

	for (unsigned i = 0; i < words; i++)
		n += (size_t)snprintf(text + n, size - n, "%s%02x%02x", i ? ":" : "", bytes[2 * i],
				      bytes[2 * i + 1]);
	snprintf(text + n, size - n, "\n");
}

static void text_guid(char *text, size_t size, const struct vb_view_device *d, unsigned index)
{
	hex_words(text, size, d->guid, 4);
}

static void text_name(char *text, size_t size, const struct vb_view_device *d, unsigned index)
{
	snprintf(text, size, "%s\n", d->name);
}

static void text_state(char *text, size_t size, const struct vb_view_device *d, unsigned index)
{
	snprintf(text, size, "%s\n", d->port.up ? "4: ACTIVE" : "1: DOWN");
}

static void text_phys_state(char *text, size_t size, const struct vb_view_device *d, unsigned index)
{
	snprintf(text, size, "%s\n", d->port.up ? "5: LinkUp" : "3: Disabled");
}

static void text_link_layer(char *text, size_t size, const struct vb_view_device *d, unsigned index)
{
	snprintf(text, size, "%s\n", vb_devices_link_name(d->lid));
}

static void text_lid(char *text, size_t size, const struct vb_view_device *d, unsigned index)
{
	snprintf(text, size, "0x%x\n", d->lid);
}

static void text_sm_lid(char *text, size_t size, const struct vb_view_device *d, unsigned index)
{
	snprintf(text, size, "0x%x\n", d->lid ? VB_SM_LID : 0);
}

static void text_gid(char *text, size_t size, const struct vb_view_device *d, unsigned index)
{
	static const uint8_t empty[16];

	hex_words(text, size, index < d->port.gids.n ? d->port.gids.gid[index] : empty, 8);
}

static void text_gid_ndev(char *text, size_t size, const struct vb_view_device *d, unsigned index)
{
	snprintf(text, size, "%s\n", d->ndev[index]);
}

static void text_cap_mask(char *text, size_t size, const struct vb_view_device *d, unsigned index)
{
	snprintf(text, size, "0x%08x\n", d->lid ? (unsigned)VB_PORT_CAPS_IB : (unsigned)VB_PORT_CAPS);
}

static void text_counter(char *text, size_t size, const struct vb_view_device *d, unsigned index)
{
	snprintf(text, size, "%" PRIu64 "\n", vb_view_counter_value(&d->traffic, index));
}

static void text_hw_counter(char *text, size_t size, const struct vb_view_device *d, unsigned index)
{
	snprintf(text, size, "%" PRIu64 "\n", vb_view_hw_counter_value(&d->traffic, index));
}

static void text_number(char *text, size_t size, const struct vb_view_device *d, unsigned index)
{
	snprintf(text, size, "231:%u\n", index);
}

/* How many nodes a row makes: one, or of each device one, none but on Ethernet, or one for each entry
 * of a table; types and interfaces have those GIDs alone that are not empty. */
enum per { ONE, DEVICE, ROCE, GID, ROCE_GID, PKEY, COUNTER, HW_COUNTER };

/* In paths, '@' is the device, '%' its file, '=' the network device, '#' the number of the entry, and '~' and
 * '^' are the names of counters. */
static const struct row {
	const char *path;
	enum vb_view_kind kind;
	enum per per;
	const char *text; /* or: */
	text_fn *compose;
} rows[] = {
    {IB, VB_VIEW_DIR, ONE, 0, 0},
    {DEV, VB_VIEW_DIR, DEVICE, 0, 0},
    {DEV "/node_type", VB_VIEW_FILE, DEVICE, "1: CA\n", 0},
    {DEV "/node_guid", VB_VIEW_FILE, DEVICE, 0, text_guid},
    {DEV "/sys_image_guid", VB_VIEW_FILE, DEVICE, 0, text_guid},
    {DEV "/node_desc", VB_VIEW_FILE, DEVICE, 0, text_name},
    {DEV "/fw_ver", VB_VIEW_FILE, DEVICE, VB_FW_VER "\n", 0},
    {DEV "/hca_type", VB_VIEW_FILE, DEVICE, "Verbena\n", 0},
    {DEV "/hw_rev", VB_VIEW_FILE, DEVICE, "0\n", 0}, /* ibv_device_attr.hw_ver */
    {DEV "/board_id", VB_VIEW_FILE, DEVICE, "verbena\n", 0},
    {DEV "/device", VB_VIEW_DIR, DEVICE, 0, 0},
    {DEV "/device/net", VB_VIEW_DIR, DEVICE, 0, 0},
    {DEV "/device/net/=", VB_VIEW_DIR, DEVICE, 0, 0},
    {DEV "/ports", VB_VIEW_DIR, DEVICE, 0, 0},
    {PORT, VB_VIEW_DIR, DEVICE, 0, 0},
    {PORT "/state", VB_VIEW_FILE, DEVICE, 0, text_state},
    {PORT "/phys_state", VB_VIEW_FILE, DEVICE, 0, text_phys_state},
    {PORT "/link_layer", VB_VIEW_FILE, DEVICE, 0, text_link_layer},
    {PORT "/rate", VB_VIEW_FILE, DEVICE, VB_LINK_RATE "\n", 0},
    {PORT "/cap_mask", VB_VIEW_FILE, DEVICE, 0, text_cap_mask},
    {PORT "/lid", VB_VIEW_FILE, DEVICE, 0, text_lid},
    {PORT "/lid_mask_count", VB_VIEW_FILE, DEVICE, "0\n", 0},
    {PORT "/sm_lid", VB_VIEW_FILE, DEVICE, 0, text_sm_lid},
    {PORT "/sm_sl", VB_VIEW_FILE, DEVICE, "0\n", 0},
    {PORT "/gids", VB_VIEW_DIR, DEVICE, 0, 0},
    {PORT "/gids/#", VB_VIEW_FILE, GID, 0, text_gid},
    {PORT "/gid_attrs", VB_VIEW_DIR, ROCE, 0, 0},
    {PORT "/gid_attrs/types", VB_VIEW_DIR, ROCE, 0, 0},
    {PORT "/gid_attrs/types/#", VB_VIEW_FILE, ROCE_GID, "RoCE v2\n", 0},
    {PORT "/gid_attrs/ndevs", VB_VIEW_DIR, ROCE, 0, 0},
    {PORT "/gid_attrs/ndevs/#", VB_VIEW_FILE, ROCE_GID, 0, text_gid_ndev},
    {PORT "/counters", VB_VIEW_DIR, DEVICE, 0, 0},
    {PORT "/counters/~", VB_VIEW_FILE, COUNTER, 0, text_counter},
    {PORT "/hw_counters", VB_VIEW_DIR, DEVICE, 0, 0},
    {PORT "/hw_counters/^", VB_VIEW_FILE, HW_COUNTER, 0, text_hw_counter},
    {PORT "/pkeys", VB_VIEW_DIR, DEVICE, 0, 0},
    {PORT "/pkeys/#", VB_VIEW_FILE, PKEY, "0xffff\n", 0},
    {VERBS, VB_VIEW_DIR, ONE, 0, 0},
    {VERBS "/abi_version", VB_VIEW_FILE, ONE, "6\n", 0},
    {UVERBS, VB_VIEW_DIR, DEVICE, 0, 0},
    {UVERBS "/ibdev", VB_VIEW_FILE, DEVICE, 0, text_name},
    {UVERBS "/abi_version", VB_VIEW_FILE, DEVICE, "1\n", 0},
    {UVERBS "/dev", VB_VIEW_FILE, DEVICE, 0, text_number},
    {"/dev/infiniband", VB_VIEW_DIR, ONE, 0, 0},
    {"/dev/infiniband/%", VB_VIEW_DEVICE, DEVICE, 0, 0},
};

#define ROWS (sizeof(rows) / sizeof(rows[0]))

static unsigned count_of(enum per per, const struct vb_view_device *d)
{
	unsigned n = 0;

	switch (per) {
	case ONE:
	case DEVICE:
		return 1;
	case ROCE:
		return !d->lid;
	case GID:
		return VB_GID_ROOM;
	case ROCE_GID:
		return d->lid ? 0 : d->port.gids.n;
	case PKEY:
		return VB_PKEY_TABLE;
	case COUNTER:
		while (vb_view_counter(n))
			n++;
		return n;
	case HW_COUNTER:
		while (vb_view_hw_counter(n))
			n++;
		return n;
	}
	return 0;
}

static void compose_path(char *path, size_t size, const char *form, const struct vb_view_device *d,
			 unsigned index)
{
	size_t n = 0;

	for (; *form && n < size - 1; form++) {
		int len = *form == '@'	 ? snprintf(path + n, size - n, "%s", d->name)
			  : *form == '%' ? snprintf(path + n, size - n, "%s", d->file)
			  : *form == '=' ? snprintf(path + n, size - n, "%s", d->port.ifname)
			  : *form == '#' ? snprintf(path + n, size - n, "%u", index)
			  : *form == '~' ? snprintf(path + n, size - n, "%s", vb_view_counter(index))
			  : *form == '^' ? snprintf(path + n, size - n, "%s", vb_view_hw_counter(index))
					 : snprintf(path + n, size - n, "%c", *form);
		n += (size_t)len;
	}
}

static void make(struct vb_view_node *n, const struct row *r, const struct vb_view_facts *f, uint32_t device,
		 unsigned index)
{
	const struct vb_view_device *d = &f->at[device];

	n->kind = r->kind;
	n->minor = FIRST_MINOR + device;
	compose_path(n->path, sizeof(n->path), r->path, d, index);
	snprintf(n->text, sizeof(n->text), "%s", r->text ? r->text : "");
	if (r->compose)
		r->compose(n->text, sizeof(n->text), d, r->compose == text_number ? n->minor : index);
}

bool vb_view_row(const struct vb_view_facts *f, unsigned i, struct vb_view_node *n)
{
	unsigned first = 0;

	for (size_t r = 0; r < ROWS; r++) {
		for (uint32_t k = 0; k < (rows[r].per == ONE ? 1 : f->n); k++) {
			unsigned count = count_of(rows[r].per, &f->at[k]);

			if (i < first + count) {
				n->ino = i + 1;
				make(n, &rows[r], f, k, i - first);
				return true;
			}
			first += count;
		}
	}
	return false;
}

static bool look_up(const struct vb_view_facts *f, const char *path, struct vb_view_node *n)
{
	for (unsigned i = 0; vb_view_row(f, i, n); i++)
		if (!strcmp(n->path, path))
			return true;
	return false;
}

/* A path with ".." in front goes on to the kernel: what it leaves may be a symbolic link. */
bool vb_view_begins_untidily(const char *path)
{
	enum { FRONT = 64 }; /* more than the view's own directories have */
	char tidy[FRONT + 2];
	size_t n = 0, part;

	while (path += strspn(path, "/"), *path) {
		part = strcspn(path, "/");
		if (part != 1 || *path != '.') {
			if (n + 1 + part > FRONT)
				return false;
			tidy[n++] = '/';
			memcpy(tidy + n, path, part);
			n += part;
			tidy[n] = '\0';
			if (vb_view_begins_tidily(tidy))
				return true;
		}
		path += part;
	}
	return false;
}

/* `out` is what a ".." left of the path, outside of the view; the rest of the path is not for us to read,
 * unless it leads in again. */
static int left_view(const char *rest, size_t len, struct vb_view_node *n, char out[PATH_MAX])
{
	char again[PATH_MAX];

	strcpy(out + len, rest);
	if (!len && !*rest)
		strcpy(out, "/");
	if (!vb_view_begins(out))
		return 0;
	strcpy(again, out);
	return vb_view_find(again, n, out);
}

/* The view has no symbolic links, so ".." can be resolved by the name; a directory must be there all the same
 * before its name is followed. */
int vb_view_find(const char *path, struct vb_view_node *n, char out[PATH_MAX])
{
	char whole[PATH_MAX];
	size_t len = 0, part;
	struct vb_view_facts f;
	const char *cwd;
	bool inside;

	if (*path != '/') {
		cwd = vb_view_cwd();
		if (!cwd || snprintf(whole, sizeof(whole), "%s/%s", cwd, path) >= (int)sizeof(whole))
			return cwd ? ENAMETOOLONG : ENOENT;
		path = whole;
	}
	if (strlen(path) >= PATH_MAX)
		return ENAMETOOLONG;
	vb_view_facts_read(&f);
	if (strstr(path, "counters"))
		vb_view_facts_count(&f);
	out[0] = '\0';
	while (path += strspn(path, "/"), *path) {
		part = strcspn(path, "/");
		inside = vb_view_begins(out);
		if (inside && !look_up(&f, out, n))
			return ENOENT;
		if (inside && n->kind != VB_VIEW_DIR)
			return ENOTDIR;
		if (part == 2 && !strncmp(path, "..", 2)) {
			len = strrchr(out, '/') ? (size_t)(strrchr(out, '/') - out) : 0;
			out[len] = '\0';
			if (inside && !vb_view_begins(out))
				return left_view(path + part, len, n, out);
		} else if (part != 1 || *path != '.') {
			out[len++] = '/';
			memcpy(out + len, path, part);
			len += part;
			out[len] = '\0';
		}
		path += part;
	}
	if (!look_up(&f, out, n))
		return ENOENT;
	return path[-1] == '/' && n->kind != VB_VIEW_DIR ? ENOTDIR : -1;
}
