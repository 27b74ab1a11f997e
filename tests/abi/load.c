/* Binding as NCCL and others do it: dlopen, dlvsym with the version each call was compiled for. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include <infiniband/verbs.h>

static const struct {
	const char *name, *version;
} wanted[] = {
    {"ibv_get_device_list", "IBVERBS_1.1"},
    {"ibv_free_device_list", "IBVERBS_1.1"},
    {"ibv_get_device_name", "IBVERBS_1.1"},
    {"ibv_open_device", "IBVERBS_1.1"},
    {"ibv_close_device", "IBVERBS_1.1"},
    {"ibv_get_async_event", "IBVERBS_1.1"},
    {"ibv_ack_async_event", "IBVERBS_1.1"},
    {"ibv_query_device", "IBVERBS_1.1"},
    {"ibv_query_port", "IBVERBS_1.1"},
    {"ibv_query_gid", "IBVERBS_1.1"},
    {"ibv_query_qp", "IBVERBS_1.1"},
    {"ibv_alloc_pd", "IBVERBS_1.1"},
    {"ibv_dealloc_pd", "IBVERBS_1.1"},
    {"ibv_reg_mr", "IBVERBS_1.1"},
    {"ibv_dereg_mr", "IBVERBS_1.1"},
    {"ibv_create_cq", "IBVERBS_1.1"},
    {"ibv_destroy_cq", "IBVERBS_1.1"},
    {"ibv_create_qp", "IBVERBS_1.1"},
    {"ibv_modify_qp", "IBVERBS_1.1"},
    {"ibv_destroy_qp", "IBVERBS_1.1"},
    {"ibv_fork_init", "IBVERBS_1.1"},
    {"ibv_event_type_str", "IBVERBS_1.1"},
    {"ibv_reg_mr_iova2", "IBVERBS_1.8"},
    {"ibv_query_ece", "IBVERBS_1.10"},
    {"ibv_set_ece", "IBVERBS_1.10"},
    {"ibv_reg_dmabuf_mr", "IBVERBS_1.12"},
    {"ibv_query_port_speed", "IBVERBS_1.16"},
    {"ibv_alloc_buf", "IBVERBS_1.17"},
    {"ibv_create_comp_cntr", "IBVERBS_1.18"},
    {"verbs_register_driver_34", "IBVERBS_PRIVATE_34"},
    {"ibv_query_gid_type", "IBVERBS_PRIVATE_65"},
};

static int use(void)
{
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	struct ibv_device **(*get)(int *);
	struct ibv_context *(*open)(struct ibv_device *);
	int (*close)(struct ibv_context *);
	void (*put)(struct ibv_device **);
	struct ibv_device **list;
	struct ibv_context *context;
	int n = 0;

	if (!lib) {
		printf("FAIL: %s\n", dlerror());
		return 1;
	}
	for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
		if (!dlvsym(lib, wanted[i].name, wanted[i].version)) {
			printf("FAIL: %s\n", dlerror());
			return 1;
		}
	*(void **)&get = dlsym(lib, "ibv_get_device_list");
	*(void **)&put = dlsym(lib, "ibv_free_device_list");
	*(void **)&open = dlsym(lib, "ibv_open_device");
	*(void **)&close = dlsym(lib, "ibv_close_device");
	list = get(&n);
	context = list && n ? open(list[0]) : NULL;
	if (!context || strcmp(list[0]->name, "verbena0")) {
		printf("FAIL: no context of verbena0\n");
		return 1;
	}
	close(context);
	put(list);
	dlclose(lib); /* the engine's code must stay */
	return 0;
}

int main(void)
{
	return use() || use();
}
