/* Under the view, where the kernel has devices of its own (foreign.sh makes them): none of their names is
 * found, by whichever call a program looks. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <infiniband/verbs.h>

static int failures;

#define EXPECT(x)                                                                      \
	do {                                                                           \
		if (!(x)) {                                                            \
			printf("FAIL: line %d: %s (errno %d)\n", __LINE__, #x, errno); \
			failures++;                                                    \
		}                                                                      \
	} while (0)

static const char *const absent[] = {
    "/sys/class/infiniband/mlx5_0",
    "/sys/class/infiniband/mana_0/node_type",
    "/sys/class/infiniband/mlx5_0/ports/1/state",
    "/sys/class//infiniband/mlx5_0",
    "/sys/./class/infiniband/mlx5_0",
    "//sys/class/infiniband/mlx5_0",
    "/./sys/class/infiniband/./mlx5_0",
    "/sys/class/infiniband_verbs/uverbs1",
    "/sys/class/infiniband_verbs/uverbs1/ibdev",
    "/sys/class/infiniband_mad",
    "/sys/class/infiniband_mad/umad0",
    "/sys/class/infiniband_mad/abi_version",
    "/dev/infiniband/uverbs1",
    "/dev//infiniband/uverbs1",
    "/dev/infiniband/umad0",
    "/dev/infiniband/rdma_cm",
};

static void check_absent(const char *path)
{
	struct statx stx;
	struct stat st;
	char buf[PATH_MAX];
	int before = failures;

	EXPECT(access(path, F_OK) && errno == ENOENT);
	EXPECT(stat(path, &st) && errno == ENOENT);
	EXPECT(lstat(path, &st) && errno == ENOENT);
	EXPECT(fstatat(AT_FDCWD, path, &st, 0) && errno == ENOENT);
	EXPECT(statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, &stx) && errno == ENOENT);
	EXPECT(open(path, O_RDONLY | O_CLOEXEC) < 0 && errno == ENOENT);
	EXPECT(openat(AT_FDCWD, path, O_RDWR | O_CLOEXEC) < 0 && errno == ENOENT);
	EXPECT(!fopen(path, "re") && errno == ENOENT);
	EXPECT(!opendir(path) && errno == ENOENT);
	EXPECT(!realpath(path, buf) && errno == ENOENT);
	EXPECT(readlink(path, buf, sizeof(buf)) < 0 && errno == ENOENT);
	if (failures != before)
		printf("FAIL: the path was %s\n", path);
}

/* "a b c" of the names in a directory, sorted. */
static void check_list(const char *dir, const char *wanted)
{
	struct dirent **list;
	char names[1000] = "";
	int n = scandir(dir, &list, NULL, alphasort);
	DIR *d = opendir(dir);
	int seen = 0;

	for (int i = 0; i < n; i++) {
		if (list[i]->d_name[0] != '.')
			strcat(strcat(names, *names ? " " : ""), list[i]->d_name);
		free(list[i]);
	}
	if (n >= 0)
		free(list);
	while (d && readdir(d))
		seen++;
	if (strcmp(names, wanted) || seen != n) {
		printf("FAIL: %s has \"%s\" by scandir(), wanted \"%s\"; readdir() has %d entries\n", dir,
		       names, wanted, seen);
		failures++;
	}
	if (d)
		closedir(d);
}

static void check_glob(const char *pattern, const char *wanted)
{
	char paths[2000] = "";
	glob_t g;
	int err = glob(pattern, 0, NULL, &g);

	for (size_t i = 0; !err && i < g.gl_pathc; i++)
		strcat(strcat(paths, *paths ? " " : ""), g.gl_pathv[i]);
	if (strcmp(paths, wanted) || err != (*wanted ? 0 : GLOB_NOMATCH)) {
		printf("FAIL: glob(\"%s\") gives %d, \"%s\"; wanted \"%s\"\n", pattern, err, paths, wanted);
		failures++;
	}
	if (!err)
		globfree(&g);
}

static void check_uverbs(void)
{
	int fd = open("/dev/infiniband/uverbs0", O_RDWR | O_CLOEXEC);
	struct stat st;

	EXPECT(fd >= 0 && !fstat(fd, &st) && S_ISCHR(st.st_mode) &&
	       st.st_rdev == makedev(1, 3)); /* /dev/null */
	if (fd >= 0)
		close(fd);
}

/* Relative to directories above. */
static void check_relative(void)
{
	int root = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC),
	    class = open("/sys/class", O_PATH | O_CLOEXEC);
	struct stat st;
	char buf[PATH_MAX];

	EXPECT(faccessat(root, "sys/class/infiniband/mlx5_0", F_OK, 0) && errno == ENOENT);
	EXPECT(!faccessat(root, "sys/class/infiniband/verbena0", F_OK, 0));
	EXPECT(openat(root, "sys/class/infiniband", O_RDONLY | O_DIRECTORY | O_CLOEXEC) < 0 &&
	       errno == EOPNOTSUPP);
	EXPECT(fstatat(class, "infiniband/mlx5_0", &st, 0) && errno == ENOENT);
	EXPECT(!fstatat(class, "infiniband", &st, 0) && S_ISDIR(st.st_mode));
	EXPECT(openat(class, "./infiniband_mad/umad0/ibdev", O_RDONLY | O_CLOEXEC) < 0 && errno == ENOENT);
	EXPECT(openat(class, "infiniband_verbs/uverbs0/ibdev", O_RDONLY | O_CLOEXEC) >= 0);
	EXPECT(!fstatat(class, "net/lo", &st, 0)); /* elsewhere it is as ever */
	EXPECT(fstatat(-1, "infiniband", &st, 0) && errno == EBADF);
	EXPECT(!chdir("/sys/class"));
	EXPECT(access("infiniband/mlx5_0", F_OK) && errno == ENOENT && !access("infiniband/verbena0", F_OK));
	check_list("infiniband", "verbena0");
	check_glob("infiniband/*", "infiniband/verbena0");
	EXPECT(realpath("infiniband", buf) && !strcmp(buf, "/sys/class/infiniband"));
	EXPECT(!chdir("infiniband") && !access("verbena0/node_type", R_OK) && access("mlx5_0", F_OK));
	EXPECT(!chdir("/") && access("dev/infiniband/uverbs1", F_OK) &&
	       !access("dev/infiniband/uverbs0", R_OK));
	close(root);
	close(class);
}

int main(void)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);

	EXPECT(list && n == 1 && !strcmp(ibv_get_device_name(list[0]), "verbena0"));
	ibv_free_device_list(list);
	for (size_t i = 0; i < sizeof(absent) / sizeof(*absent); i++)
		check_absent(absent[i]);
	check_list("/sys/class/infiniband", "verbena0");
	check_list("/sys/class/infiniband_verbs", "abi_version uverbs0");
	check_list("/dev/infiniband", "uverbs0");
	check_list("/sys//class/./infiniband/", "verbena0");
	check_glob("/sys/class/infiniband/*", "/sys/class/infiniband/verbena0");
	check_glob("/sys/class/infiniband/m*", "");
	check_glob("/sys/class/infiniband*/[mu]*[0-9]", "/sys/class/infiniband_verbs/uverbs0");
	check_glob("/dev/infiniband/*", "/dev/infiniband/uverbs0");
	check_glob("/dev/inf*/uverbs*", "/dev/infiniband/uverbs0");
	check_glob("/sys/class/net/l[o]", "/sys/class/net/lo");
	check_uverbs();
	check_relative();
	EXPECT(access("/sys/devices/infiniband/mlx5_0", F_OK) &&
	       errno == ENOENT); /* which goes on to the kernel */
	printf("%d failures\n", failures);
	return failures != 0;
}
