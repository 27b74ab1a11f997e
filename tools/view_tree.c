/* What is in the view, and finding it.  Everything is composed when it is asked for; there is no tree to
 * keep. */
#include "view.h"

#include <errno.h>
#include <stdio.h>

#include <infiniband/verbs.h>

#include "host/identity.h"
#include "view_facts.h"

#define IB     "/sys/class/infiniband"
#define DEV    IB "/" VB_DEVICE_NAME
#define VERBS  "/sys/class/infiniband_verbs"
#define PORT   DEV "/ports/1"
#define UVERBS VERBS "/" VB_UVERBS_NAME

typedef bool text_fn(char *text, size_t size, const struct vb_view_facts *f, unsigned index);

static void hex_words(char *text, size_t size, const uint8_t *bytes, unsigned words)
{
	size_t n = 0;

	for (unsigned i = 0; i < words; i++)
		n += (size_t)snprintf(text + n, size - n, "%s%02x%02x", i ? ":" : "", bytes[2 * i],
				      bytes[2 * i + 1]);
	snprintf(text + n, size - n, "\n");
}

static bool text_guid(char *text, size_t size, const struct vb_view_facts *f, unsigned index)
{
	(void)index;
	hex_words(text, size, f->guid, 4);
	return true;
}

static bool text_gid(char *text, size_t size, const struct vb_view_facts *f, unsigned index)
{
	hex_words(text, size, f->gids[index], 8);
	return true;
}

static bool text_gid_type(char *text, size_t size, const struct vb_view_facts *f, unsigned index)
{
	(void)f;
	(void)index;
	snprintf(text, size, "RoCE v2\n");
	return true;
}

static bool text_gid_ndev(char *text, size_t size, const struct vb_view_facts *f, unsigned index)
{
	snprintf(text, size, "%s\n", f->ndev[index]);
	return true;
}

static bool text_cap_mask(char *text, size_t size, const struct vb_view_facts *f, unsigned index)
{
	(void)f;
	(void)index;
	snprintf(text, size, "0x%08x\n", (unsigned)VB_PORT_CAPS);
	return true;
}

/* In paths, '=' is the network device and '#' the number among `count`. */
static const struct row {
	const char *path;
	enum vb_view_kind kind;
	const char *text; /* or: */
	text_fn *compose;
	unsigned count; /* 0: one */
} rows[] = {
    {IB, VB_VIEW_DIR, 0, 0, 0},
    {DEV, VB_VIEW_DIR, 0, 0, 0},
    {DEV "/node_type", VB_VIEW_FILE, "1: CA\n", 0, 0},
    {DEV "/node_guid", VB_VIEW_FILE, 0, text_guid, 0},
    {DEV "/sys_image_guid", VB_VIEW_FILE, 0, text_guid, 0},
    {DEV "/node_desc", VB_VIEW_FILE, VB_DEVICE_NAME "\n", 0, 0},
    {DEV "/fw_ver", VB_VIEW_FILE, VB_FW_VER "\n", 0, 0},
    {DEV "/device", VB_VIEW_DIR, 0, 0, 0},
    {DEV "/device/net", VB_VIEW_DIR, 0, 0, 0},
    {DEV "/device/net/=", VB_VIEW_DIR, 0, 0, 0},
    {DEV "/ports", VB_VIEW_DIR, 0, 0, 0},
    {PORT, VB_VIEW_DIR, 0, 0, 0},
    {PORT "/state", VB_VIEW_FILE, "4: ACTIVE\n", 0, 0},
    {PORT "/phys_state", VB_VIEW_FILE, "5: LinkUp\n", 0, 0},
    {PORT "/link_layer", VB_VIEW_FILE, "Ethernet\n", 0, 0},
    {PORT "/rate", VB_VIEW_FILE, VB_LINK_RATE "\n", 0, 0},
    {PORT "/cap_mask", VB_VIEW_FILE, 0, text_cap_mask, 0},
    {PORT "/lid", VB_VIEW_FILE, "0x0\n", 0, 0},
    {PORT "/lid_mask_count", VB_VIEW_FILE, "0\n", 0, 0},
    {PORT "/sm_lid", VB_VIEW_FILE, "0x0\n", 0, 0},
    {PORT "/sm_sl", VB_VIEW_FILE, "0\n", 0, 0},
    {PORT "/gids", VB_VIEW_DIR, 0, 0, 0},
    {PORT "/gids/#", VB_VIEW_FILE, 0, text_gid, VB_GID_TABLE},
    {PORT "/gid_attrs", VB_VIEW_DIR, 0, 0, 0},
    {PORT "/gid_attrs/types", VB_VIEW_DIR, 0, 0, 0},
    {PORT "/gid_attrs/types/#", VB_VIEW_FILE, 0, text_gid_type, VB_GID_TABLE},
    {PORT "/gid_attrs/ndevs", VB_VIEW_DIR, 0, 0, 0},
    {PORT "/gid_attrs/ndevs/#", VB_VIEW_FILE, 0, text_gid_ndev, VB_GID_TABLE},
    {PORT "/pkeys", VB_VIEW_DIR, 0, 0, 0},
    {PORT "/pkeys/#", VB_VIEW_FILE, "0xffff\n", 0, VB_PKEY_TABLE},
    {VERBS, VB_VIEW_DIR, 0, 0, 0},
    {VERBS "/abi_version", VB_VIEW_FILE, "6\n", 0, 0},
    {UVERBS, VB_VIEW_DIR, 0, 0, 0},
    {UVERBS "/ibdev", VB_VIEW_FILE, VB_DEVICE_NAME "\n", 0, 0},
    {UVERBS "/abi_version", VB_VIEW_FILE, "1\n", 0, 0},
    {UVERBS "/dev", VB_VIEW_FILE, "231:192\n", 0, 0},
    {"/dev/infiniband", VB_VIEW_DIR, 0, 0, 0},
    {"/dev/infiniband/" VB_UVERBS_NAME, VB_VIEW_DEVICE, 0, 0, 0},
};

#define ROWS (sizeof(rows) / sizeof(rows[0]))

static void compose_path(char *path, size_t size, const char *form, const struct vb_view_facts *f,
			 unsigned index)
{
	size_t n = 0;

	for (; *form && n < size - 1; form++) {
		int len = *form == '='	 ? snprintf(path + n, size - n, "%s", f->netdev)
			  : *form == '#' ? snprintf(path + n, size - n, "%u", index)
					 : snprintf(path + n, size - n, "%c", *form);
		n += (size_t)len;
	}
}

bool vb_view_row(unsigned i, struct vb_view_node *n, bool *end)
{
	const struct vb_view_facts *f = vb_view_facts();
	unsigned first = 0;

	*end = false;
	for (size_t r = 0; r < ROWS; r++) {
		unsigned count = rows[r].count ? rows[r].count : 1;

		if (i >= first + count) {
			first += count;
			continue;
		}
		n->kind = rows[r].kind;
		n->ino = i + 1;
		compose_path(n->path, sizeof(n->path), rows[r].path, f, i - first);
		n->text[0] = '\0';
		if (rows[r].text)
			snprintf(n->text, sizeof(n->text), "%s", rows[r].text);
		return !rows[r].compose || rows[r].compose(n->text, sizeof(n->text), f, i - first);
	}
	*end = true;
	return false;
}

static bool look_up(const char *path, struct vb_view_node *n)
{
	bool end = false;

	for (unsigned i = 0; !end; i++)
		if (vb_view_row(i, n, &end) && !strcmp(n->path, path))
			return true;
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
	size_t len = 0, part;
	bool inside;

	if (strlen(path) >= PATH_MAX)
		return ENAMETOOLONG;
	out[0] = '\0';
	while (path += strspn(path, "/"), *path) {
		part = strcspn(path, "/");
		inside = vb_view_begins(out);
		if (inside && !look_up(out, n))
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
	if (!look_up(out, n))
		return ENOENT;
	return path[-1] == '/' && n->kind != VB_VIEW_DIR ? ENOTDIR : -1;
}
