/* verbena doctor: the limits of the process, and what the host or container is like. */
#include "doctor.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "host/devices.h"
#include "host/netdev.h"
#include "host/private.h"
#include "host/segment.h"
#include "iba/profile.h"
#include "peek.h"

enum {
	FEW_PEERS = 128, /* fewer than this are worth a word */
	FIRST_DEVICE = 16,
	NEXT_DEVICE = 8,
	EACH_PEER = 2, /* descriptors: docs/limits.md */
	EACH_NETDEV = 67,
	STANDARD = 3,
	OVERFLOW_UID = 65534,
};

/* ---- resources ---- */

static bool is_limited(int which, uint64_t *limit)
{
	struct rlimit r;

	if (getrlimit(which, &r) || r.rlim_cur == RLIM_INFINITY)
		return false;
	*limit = r.rlim_cur;
	return true;
}

static enum vb_grade grade_of(uint64_t peers)
{
	return !peers ? VB_FAILS : peers < FEW_PEERS ? VB_LIMIT : VB_OK;
}

static const char *cost_of(uint64_t peers)
{
	return !peers		   ? "no process can reach another"
	       : peers < FEW_PEERS ? "a process that meets more peers cannot connect to them"
				   : NULL;
}

static void look_at_address_space(struct vb_doctor *d)
{
	uint64_t limit, each = VB_SEG_SIZE, all, peers;

	if (!is_limited(RLIMIT_AS, &limit)) {
		vb_found(d, VB_OK, "address space", NULL, NULL, "RLIMIT_AS (ulimit -v) is unlimited");
		return;
	}
	all = limit / each;
	peers = all > vb_devices_count() ? all - vb_devices_count() : 0;
	vb_found(
	    d, grade_of(peers), "address space",
	    all < vb_devices_count() ? "the device cannot be opened" : cost_of(peers),
	    peers < FEW_PEERS
		? "ulimit -v unlimited (LimitAS= of a service, \"as\" in /etc/security/limits.conf)"
		: NULL,
	    "RLIMIT_AS (ulimit -v) is %llu MiB. A device and each peer need %llu MiB, so a process has room "
	    "for at most %llu peer%s",
	    (unsigned long long)limit >> 20, (unsigned long long)each >> 20, (unsigned long long)peers,
	    peers == 1 ? "" : "s");
}

static void look_at_descriptors(struct vb_doctor *d)
{
	uint64_t limit, peers,
	    own = STANDARD + FIRST_DEVICE + NEXT_DEVICE * (vb_devices_count() - 1) +
		  EACH_NETDEV * vb_netdevs()->n;

	if (!is_limited(RLIMIT_NOFILE, &limit)) {
		vb_found(d, VB_OK, "descriptors", NULL, NULL, "RLIMIT_NOFILE (ulimit -n) is unlimited");
		return;
	}
	/* `own` is what a program needs that uses rdma_cm, too; others have a few more for peers. */
	peers = limit > own ? (limit - own) / EACH_PEER : 0;
	vb_found(d, !peers && d->works ? VB_LIMIT : grade_of(peers), "descriptors",
		 peers	    ? cost_of(peers)
		 : d->works ? "a process reaches one or two others at most, and hardly any file can be open"
			    : "the device cannot be opened",
		 peers < FEW_PEERS
		     ? "ulimit -n 4096 (LimitNOFILE= of a service, docker run --ulimit nofile=4096)"
		     : NULL,
		 "RLIMIT_NOFILE (ulimit -n) is %llu: a process that opens no other files has room for about "
		 "%llu peer%s",
		 (unsigned long long)limit, (unsigned long long)peers, peers == 1 ? "" : "s");
}

static bool may_lock(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

	return !syscall(SYS_capget, &head, data) &&
	       data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK);
}

static void look_at_memlock(struct vb_doctor *d)
{
	uint64_t limit;

	if (!is_limited(RLIMIT_MEMLOCK, &limit))
		vb_found(d, VB_OK, "locked memory", NULL, NULL, "RLIMIT_MEMLOCK (ulimit -l) is unlimited");
	else if (!vb_profile()->pins)
		vb_found(d, VB_OK, "locked memory", NULL, NULL,
			 "RLIMIT_MEMLOCK (ulimit -l) is %llu KiB, which counts with --profile=strict only",
			 (unsigned long long)limit >> 10);
	else if (may_lock())
		vb_found(d, VB_OK, "locked memory", NULL, NULL,
			 "RLIMIT_MEMLOCK (ulimit -l) is %llu KiB, from which CAP_IPC_LOCK exempts you in the "
			 "initial user "
			 "namespace",
			 (unsigned long long)limit >> 10);
	else
		vb_found(
		    d, VB_LIMIT, "locked memory", "ibv_reg_mr() fails beyond that, as it does on an adapter",
		    "ulimit -l unlimited (LimitMEMLOCK= of a service, docker run --ulimit memlock=-1)",
		    "RLIMIT_MEMLOCK (ulimit -l) is %llu KiB, and the profile strict counts memory regions",
		    (unsigned long long)limit >> 10);
}

void vb_doctor_limits(struct vb_doctor *d)
{
	uint64_t limit;

	look_at_address_space(d);
	look_at_descriptors(d);
	look_at_memlock(d);
	if (is_limited(RLIMIT_FSIZE, &limit) && limit < VB_SEG_SIZE)
		vb_found(d, VB_FAILS, "file size", "the device cannot be opened", "ulimit -f unlimited",
			 "RLIMIT_FSIZE (ulimit -f) is %llu KiB, and the device's shared segment has %llu MiB "
			 "(sparse)",
			 (unsigned long long)limit >> 10, (unsigned long long)VB_SEG_SIZE >> 20);
}

/* ---- the host ---- */

static bool number_in(const char *path, long *n)
{
	FILE *f = fopen(path, "re");
	bool is = f && fscanf(f, "%ld", n) == 1;

	if (f)
		fclose(f);
	return is;
}

static void look_at_kernel(struct vb_doctor *d)
{
	int major = 0, minor = 0;
	struct utsname u;
	bool old;
	long n;

	uname(&u);
	old = sscanf(u.release, "%d.%d", &major, &minor) == 2 && (major < 5 || (major == 5 && minor < 14));
	vb_found(d, old ? VB_NOTE : VB_OK, "kernel", NULL, NULL, "%s %s%s", u.sysname, u.release,
		 old ? ": Verbena is tested with Linux 5.14 and later" : "");
	if (number_in("/proc/sys/vm/memfd_noexec", &n) && n == 2)
		vb_found(d, VB_FAILS, "kernel", "the device cannot be opened",
			 "sudo sysctl vm.memfd_noexec=1",
			 "vm.memfd_noexec is 2, which refuses memfd_create without MFD_NOEXEC_SEAL");
}

/* Whether the user that reads as `uid` here is one, and not "anybody who has no name here". */
static bool is_mapped(uint32_t uid)
{
	FILE *f = fopen("/proc/self/uid_map", "re");
	unsigned long in, out, n;
	bool mapped = false;

	while (f && !mapped && fscanf(f, "%lu %lu %lu", &in, &out, &n) == 3)
		mapped = uid >= in && uid - in < n;
	if (f)
		fclose(f);
	return mapped;
}

static void look_at_user(struct vb_doctor *d)
{
	long overflow;

	if (!number_in("/proc/sys/kernel/overflowuid", &overflow))
		overflow = OVERFLOW_UID;
	if (geteuid() == (uid_t)overflow && !access("/proc/self/uid_map", R_OK) && !is_mapped(geteuid()))
		vb_found(d, VB_FAILS, "user",
			 "no process can reach another, since their users cannot be compared",
			 "unshare --map-root-user, or --map-user",
			 "your user is not mapped in this user namespace, where every such user reads as %ld",
			 overflow);
	else
		vb_found(d, VB_OK, "user", NULL, NULL,
			 "user %u. On one host, processes of the same user and network namespace reach each "
			 "other%s",
			 geteuid(),
			 getenv("VERBENA_NETDEV") ? ". VERBENA_NETDEV adds other hosts and network namespaces"
						  : ". Others need verbena run --netdev");
}

static int try_namespaces(void *flags, int out)
{
	(void)out;
	return unshare(*(int *)flags) ? errno : 0;
}

/* unshare -Urn is what any user may do, and -n root. */
static void look_at_namespaces(struct vb_doctor *d)
{
	int own = CLONE_NEWUSER | CLONE_NEWNET, roots = CLONE_NEWNET,
	    err = vb_child(try_namespaces, &own, NULL, 0);
	char why[100];

	vb_child_why(why, sizeof(why), err);
	if (!err)
		vb_found(d, VB_OK, "namespaces", NULL, NULL,
			 "unshare -Urn makes a network namespace, which isolates tests");
	else if (!vb_child(try_namespaces, &roots, NULL, 0))
		vb_found(d, VB_OK, "namespaces", NULL, NULL,
			 "unshare -n makes a network namespace, which isolates tests. unshare -Urn, for "
			 "ordinary users, does not: %s",
			 why);
	else
		vb_found(d, VB_NOTE, "namespaces",
			 "tests cannot be isolated from one another by a network namespace",
			 "leave the chroot, if this is one; or as root, sysctl "
			 "user.max_user_namespaces=10000, kernel.unprivileged_userns_clone=1 (Debian) or "
			 "kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu)",
			 "unshare -Urn makes no network namespace: %s", why);
}

static const struct file {
	const char *path, *cost;
} files[] = {
    {"/proc/thread-self/net/unix",
     "multicast groups, XRC domains and shared protection domains do not find the members of other "
     "processes, and fail"},
    {"/proc/thread-self/maps",
     "shared memory of two programs is not mapped directly, and sentences do not say what is mapped at an "
     "address"},
    {"/proc/thread-self/fd",
     "shared memory without a name (memfd) is not mapped directly, so its transfers are slower"},
    {"/proc/tty/ldisc", "a program cannot change its working directory to /sys/class/infiniband"},
};

static void look_at_files(struct vb_doctor *d)
{
	unsigned before = d->n;

	for (unsigned i = 0; i < sizeof(files) / sizeof(*files); i++)
		if (access(files[i].path, R_OK))
			vb_found(
			    d, VB_LIMIT, "files", files[i].cost,
			    access("/proc/self", F_OK)
				? "mount -t proc proc /proc"
				: "unmount what hides it (docker run: --security-opt systempaths=unconfined)",
			    "%s cannot be read: %s", files[i].path, strerror(errno));
	if (d->n == before)
		vb_found(d, VB_OK, "files", NULL, NULL, "the files of /proc that Verbena reads are there");
}

static void look_at_cpus(struct vb_doctor *d)
{
	cpu_set_t set;

	if (!sched_getaffinity(0, sizeof(set), &set) && CPU_COUNT(&set) == 1)
		vb_found(d, VB_LIMIT, "CPUs",
			 "two programs that poll without a pause share it, and latency rises",
			 "use events (-e of perftest and rdma-core's programs), or permit more (taskset, "
			 "docker run "
			 "--cpuset-cpus)",
			 "this process may run on one CPU only");
}

void vb_doctor_host(struct vb_doctor *d)
{
	look_at_kernel(d);
	look_at_user(d);
	look_at_namespaces(d);
	look_at_files(d);
	look_at_cpus(d);
}

/* ---- others ---- */

static void look_at_devices(struct vb_doctor *d)
{
	char names[sizeof(d->foreign)] = "", own[VB_DEVICE_NAME_MAX];
	DIR *dir = opendir("/sys/class/infiniband");
	bool clash = false;
	size_t n = 0;

	if (dlsym(RTLD_DEFAULT, "verbena_guard_beneath")) { /* the view is here */
		if (dir)
			closedir(dir);
		return;
	}
	for (struct dirent *e; dir && (e = readdir(dir));) {
		if (*e->d_name == '.' || d->nforeign == sizeof(d->foreign) / sizeof(*d->foreign))
			continue;
		snprintf(d->foreign[d->nforeign++], sizeof(*d->foreign), "%.63s", e->d_name);
		n += (size_t)snprintf(names + n, sizeof(names) - n, "%s%.60s", n ? ", " : "", e->d_name);
		for (uint32_t k = 0; k < vb_devices_count(); k++)
			clash |= !strcmp(e->d_name, vb_devices_name(own, k));
	}
	if (dir)
		closedir(dir);
	if (!d->nforeign)
		vb_found(d, VB_OK, "devices", NULL, NULL, "this machine has no RDMA device of its own");
	else
		vb_found(d, VB_NOTE, "devices", NULL, NULL,
			 "this machine has RDMA devices of its own: %s. \"verbena run\" hides them%s", names,
			 clash ? ". One has the name of Verbena's device" : "");
}

static void look_at_builds(struct vb_doctor *d)
{
	struct vb_peek_other *list;
	size_t n = vb_peek_others(&list, geteuid());
	char names[300] = "";
	size_t at = 0;

	for (size_t i = 0; i < n && at < sizeof(names); i++)
		at += (size_t)snprintf(names + at, sizeof(names) - at, "%s%d (version %u)", i ? ", " : "",
				       (int)list[i].pid, list[i].version);
	free(list);
	if (n)
		vb_found(d, VB_LIMIT, "processes", "programs of this Verbena cannot communicate with them",
			 "end them, or use the same Verbena for all",
			 "process%s of yours use%s another version of Verbena: %s. This one has segment "
			 "version %u",
			 n == 1 ? "" : "es", n == 1 ? "s" : "", names, VB_SEG_VERSION);
}

static int count_numbers(void *arg, int out)
{
	int32_t *owners = vb_numbers_owners();
	unsigned others = 0, all = 0;

	(void)arg;
	if (!owners)
		return ENODATA;
	for (unsigned i = 1; i < VB_ADAPTERS; i++) {
		all += owners[i] != 0;
		others += owners[i] && owners[i] != (int32_t)geteuid() + 1;
	}
	dprintf(out, "%u %u", all, others);
	return 0;
}

static void look_at_numbers(struct vb_doctor *d)
{
	unsigned others, all;
	char counts[40] = "";

	if (vb_child(count_numbers, NULL, counts, sizeof(counts)) ||
	    sscanf(counts, "%u %u", &all, &others) != 2)
		return; /* vb_doctor_calls() says so */
	if (all > (VB_ADAPTERS - 1) / 10 * 9)
		vb_found(d, VB_LIMIT, "processes", "few processes can open a device",
			 "end processes, or run yours in a network namespace of their own (unshare -Urn)",
			 "%u of the %u adapter numbers of this network namespace are in use", all,
			 VB_ADAPTERS - 1);
	else if (others)
		vb_found(d, VB_NOTE, "processes", NULL, NULL,
			 "other users hold %u of the %u adapter numbers of this network namespace. Their "
			 "processes and yours do "
			 "not reach each other",
			 others, VB_ADAPTERS - 1);
	else
		vb_found(d, VB_OK, "processes", NULL, NULL,
			 "no other user uses Verbena in this network namespace");
}

void vb_doctor_others(struct vb_doctor *d)
{
	look_at_numbers(d);
	look_at_builds(d);
	look_at_devices(d);
}
