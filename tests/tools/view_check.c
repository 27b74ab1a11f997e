/* Under the view: its files say what the library answers, in this process. */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <infiniband/verbs.h>

int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);

static int failures;

#define EXPECT(x)                                                                      \
	do {                                                                           \
		if (!(x)) {                                                            \
			printf("FAIL: line %d: %s (errno %d)\n", __LINE__, #x, errno); \
			failures++;                                                    \
		}                                                                      \
	} while (0)

static const char *words(char *text, const uint8_t *bytes, int n)
{
	for (int i = 0, at = 0; i < n; i += 2)
		at += sprintf(text + at, "%s%02x%02x", i ? ":" : "", bytes[i], bytes[i + 1]);
	return text;
}

static void check_file(const char *dir, const char *file, const char *wanted)
{
	char buf[256] = "";

	EXPECT(ibv_read_sysfs_file(dir, file, buf, sizeof(buf)) >= 0);
	if (strcmp(buf, wanted)) {
		printf("FAIL: %s is \"%s\", the library says \"%s\"\n", file, buf, wanted);
		failures++;
	}
}

static void check_device(struct ibv_device *dev, struct ibv_context *c)
{
	char text[64], real[PATH_MAX], path[PATH_MAX];
	struct ibv_device_attr attr;
	struct stat st;
	__be64 guid = ibv_get_device_guid(dev);

	EXPECT(!ibv_query_device(c, &attr));
	check_file(dev->ibdev_path, "node_type", "1: CA");
	check_file(dev->ibdev_path, "node_guid", words(text, (const uint8_t *)&guid, 8));
	EXPECT(attr.node_guid == guid);
	check_file(dev->ibdev_path, "sys_image_guid", words(text, (const uint8_t *)&attr.sys_image_guid, 8));
	check_file(dev->ibdev_path, "fw_ver", attr.fw_ver);
	snprintf(text, sizeof(text), "%x", attr.hw_ver);
	check_file(dev->ibdev_path, "hw_rev", text);
	check_file(dev->dev_path, "ibdev", dev->name);
	EXPECT(realpath(dev->ibdev_path, real) && !strcmp(real, dev->ibdev_path));
	snprintf(path, sizeof(path), "/dev/infiniband/%s", dev->dev_name);
	EXPECT(!stat(path, &st) && S_ISCHR(st.st_mode));
	EXPECT(!access(path, R_OK | W_OK));
}

static void check_port(const char *dir, struct ibv_context *c)
{
	static const union ibv_gid zero;
	char name[64], text[64];
	struct ibv_port_attr attr;
	union ibv_gid gid;
	struct ibv_gid_entry entry;
	__be16 pkey;
	bool roce;
	int err;

	EXPECT(!ibv_query_port(c, 1, &attr));
	EXPECT(attr.state == IBV_PORT_ACTIVE && attr.phys_state == 5);
	check_file(dir, "state", "4: ACTIVE");
	check_file(dir, "phys_state", "5: LinkUp");
	check_file(dir, "link_layer", attr.link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand");
	snprintf(text, sizeof(text), "0x%x", attr.lid);
	check_file(dir, "lid", text);
	snprintf(text, sizeof(text), "0x%x", attr.sm_lid);
	check_file(dir, "sm_lid", text);
	snprintf(text, sizeof(text), "%u", attr.lmc);
	check_file(dir, "lid_mask_count", text);
	roce = attr.link_layer == IBV_LINK_LAYER_ETHERNET;
	snprintf(name, sizeof(name), "gids/%d", attr.gid_tbl_len);
	EXPECT(ibv_read_sysfs_file(dir, name, text, sizeof(text)) < 0 && errno == ENOENT);
	snprintf(text, sizeof(text), "0x%08x", attr.port_cap_flags);
	check_file(dir, "cap_mask", text);
	for (int i = 0; i < attr.pkey_tbl_len; i++) {
		EXPECT(!ibv_query_pkey(c, 1, i, &pkey));
		snprintf(name, sizeof(name), "pkeys/%d", i);
		snprintf(text, sizeof(text), "0x%04x", be16toh(pkey));
		check_file(dir, name, text);
	}
	for (int i = 0; i < attr.gid_tbl_len; i++) {
		EXPECT(!ibv_query_gid(c, 1, i, &gid));
		snprintf(name, sizeof(name), "gids/%d", i);
		check_file(dir, name, words(text, gid.raw, 16));
		err = ibv_query_gid_ex(c, 1, (uint32_t)i, &entry, 0);
		if (err) {
			EXPECT(err == ENODATA && i > 0 && !memcmp(&gid, &zero, sizeof(gid)));
			snprintf(name, sizeof(name), "gid_attrs/types/%d", i);
			EXPECT(ibv_read_sysfs_file(dir, name, text, sizeof(text)) < 0);
			continue;
		}
		EXPECT(memcmp(&gid, &zero, sizeof(gid)) && !memcmp(&gid, &entry.gid, sizeof(gid)));
		snprintf(name, sizeof(name), "gid_attrs/types/%d", i);
		if (!roce) {
			EXPECT(ibv_read_sysfs_file(dir, name, text, sizeof(text)) < 0 && errno == ENOENT);
			continue;
		}
		check_file(dir, name, "RoCE v2");
		snprintf(name, sizeof(name), "gid_attrs/ndevs/%d", i);
		EXPECT(ibv_read_sysfs_file(dir, name, text, sizeof(text)) > 0);
		EXPECT(if_nametoindex(text) == entry.ndev_ifindex);
	}
}

/* Programs that know no better still call it. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static void check_reentrant(const char *dir, int wanted)
{
	struct dirent e, *at = NULL;
	struct dirent64 e64, *at64 = NULL;
	DIR *d = opendir(dir);
	int n = 0;

	if (!d)
		return;
	EXPECT(!readdir64_r(d, &e64, &at64) && at64 == &e64 && !strcmp(e64.d_name, "."));
	while (!readdir_r(d, &e, &at) && at) {
		EXPECT(at == &e);
		n += e.d_type == DT_REG && e.d_name[0] != '.';
	}
	EXPECT(n == wanted && !at);
	EXPECT(!readdir64_r(d, &e64, &at64) && !at64);
	EXPECT(!closedir(d));
	d = opendir("/proc/self");
	EXPECT(d && !readdir_r(d, &e, &at) && at == &e && !closedir(d));
}
#pragma GCC diagnostic pop

static void check_streams(const char *dir)
{
	char buf[8];
	struct dirent *e;
	FILE *f;
	DIR *d = opendir(dir);
	int n = 0, fd;
	long at;

	EXPECT(d);
	while (d && (e = readdir(d)))
		n += e->d_type == DT_REG && e->d_name[0] != '.';
	EXPECT(n >= 5);
	if (d) {
		rewinddir(d);
		EXPECT(readdir(d) && readdir(d));
		at = telldir(d);
		e = readdir(d);
		seekdir(d, at);
		EXPECT(e && e == readdir(d));
		EXPECT(dirfd(d) == -1 && errno == ENOTSUP);
		EXPECT(!closedir(d));
	}
	check_reentrant(dir, n);
	EXPECT(opendir("/sys/class/infiniband/other") == NULL && errno == ENOENT);
	fd = open("/sys/class/infiniband//./verbena0/../verbena0/node_type", O_RDONLY | O_CLOEXEC);
	EXPECT(fd >= 0 && (fcntl(fd, F_GETFD) & FD_CLOEXEC));
	EXPECT(read(fd, buf, 2) == 2 && buf[0] == '1');
	EXPECT(write(fd, "x", 1) < 0);
	close(fd);
	f = fopen("/sys/class/infiniband/verbena0/node_type", "re");
	EXPECT(f && fgetc(f) == '1');
	if (f)
		fclose(f);
	EXPECT(!fopen("/sys/class/infiniband/verbena0/node_type", "w") && errno == EACCES);
	EXPECT(open("/sys/class/infiniband/verbena0/node_type/x", O_RDONLY) < 0 && errno == ENOTDIR);
	EXPECT(open("/sys/class/infiniband/other", O_RDONLY) < 0 && errno == ENOENT);
	EXPECT(open("/sys/class/infiniband/verbena0", O_RDONLY | O_DIRECTORY) < 0 && errno == EOPNOTSUPP);
}

/* Elsewhere everything is as without the view. */
static void check_passing(void)
{
	char real[PATH_MAX];
	struct stat st;
	const char *volatile none = NULL;
	DIR *d = opendir("/proc/self");
	int fd;

	EXPECT(d && readdir(d) && dirfd(d) >= 0 && !closedir(d));
	EXPECT(!stat("/sys/class/net", &st) && S_ISDIR(st.st_mode));
	EXPECT(stat("/sys/class/infinibandx", &st) && errno == ENOENT);
	EXPECT(!stat("/sys//class/./infiniband/../net", &st) && S_ISDIR(st.st_mode));
	/* lo is a symbolic link, so this is below /sys/devices */
	EXPECT(stat("/sys/class/net/lo/../../infiniband", &st) && errno == ENOENT);
	EXPECT(!stat("/sys/class/infiniband/../net", &st) && S_ISDIR(st.st_mode));
	EXPECT(realpath("/sys/class/infiniband/verbena0/../..", real) && !strcmp(real, "/sys/class"));
	EXPECT(access(none, R_OK) < 0 && errno == EFAULT);
	fd = openat(AT_FDCWD, "/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	EXPECT(fd < 0 || (!fstat(fd, &st) && (st.st_mode & 0777) == 0600));
	if (fd >= 0)
		close(fd);
}

int main(void)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);
	char port[PATH_MAX];

	alarm(100); /* for what hangs */
	for (int i = 0; i < n; i++) {
		struct ibv_context *c = ibv_open_device(list[i]);

		if (!c) {
			printf("FAIL: %s cannot be opened\n", list[i]->name);
			return 1;
		}
		check_device(list[i], c);
		snprintf(port, sizeof(port), "%s/ports/1", list[i]->ibdev_path);
		check_port(port, c);
		ibv_close_device(c);
	}
	EXPECT(n > 0);
	check_streams("/sys/class/infiniband/verbena0");
	check_passing();
	printf("%d devices as the library says\n", n);
	ibv_free_device_list(list);
	return failures != 0;
}
