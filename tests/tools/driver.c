/* A driver's library that was built for that release. */
int ibv_call_of_release_99(void);
int ibv_cmd_of_release_99(void);
__attribute__((visibility("default"))) int driver(void);

int driver(void)
{
	return ibv_call_of_release_99() + ibv_cmd_of_release_99();
}
