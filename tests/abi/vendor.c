/* A program linked with the vendors' libraries starts on our library, and they leave our device alone. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <infiniband/efadv.h>
#include <infiniband/manadv.h>
#include <infiniband/mlx4dv.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

static int failures;

/* These two libraries do not ask whose a context is, so that they load is all there is. */
static void *volatile loaded[] = {(void *)mlx4dv_init_obj, (void *)manadv_init_obj};

static void expect(int ok, const char *what)
{
	if (!ok) {
		printf("FAIL: %s (errno %d)\n", what, errno);
		failures++;
	}
}

int main(int argc, char **argv)
{
	struct mlx5dv_context_attr open_attr = {.flags = MLX5DV_CONTEXT_FLAGS_DEVX};
	struct mlx5dv_context mlx5 = {0};
	struct efadv_device_attr efa;
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;
	Dl_info from;

	expect(argc == 2 && dladdr((void *)ibv_get_device_list, &from) && strstr(from.dli_fname, argv[1]),
	       "this is not our library");
	expect(loaded[0] && loaded[1], "libmlx4 and libmana");
	expect(list && list[0], "no device");
	if (failures)
		return 1;
	expect(!mlx5dv_is_supported(list[0]), "mlx5dv_is_supported");
	errno = 0;
	expect(!mlx5dv_open_device(list[0], &open_attr) && errno == EOPNOTSUPP, "mlx5dv_open_device");
	context = ibv_open_device(list[0]);
	expect(context != NULL, "ibv_open_device");
	if (!context)
		return 1;
	expect(efadv_query_device(context, &efa, sizeof(efa)) == EOPNOTSUPP, "efadv_query_device");
	expect(mlx5dv_query_device(context, &mlx5) == EOPNOTSUPP, "mlx5dv_query_device");
	ibv_close_device(context);
	ibv_free_device_list(list);
	return failures != 0;
}
