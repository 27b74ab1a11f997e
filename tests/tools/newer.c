/* A libibverbs of a release that never was: names at a public node that Verbena has got, and one at each of
 * a public and a private node that it has not. */
#define PUBLIC __attribute__((visibility("default")))

PUBLIC int ibv_get_device_list(void);
PUBLIC int ibv_open_device(void);
PUBLIC int ibv_call_of_release_99(void);
PUBLIC int ibv_cmd_of_release_99(void);

int ibv_get_device_list(void)
{
	return 0;
}

int ibv_open_device(void)
{
	return 0;
}

int ibv_call_of_release_99(void)
{
	return 0;
}

int ibv_cmd_of_release_99(void)
{
	return 0;
}
