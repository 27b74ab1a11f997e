/* Many times of single messages, told as users' programs tell them; see vbench.h. */
#include "vbench.h"

double spread_unit(double began, uint64_t began_ticks)
{
	return (now() - began) / (double)(ticks() - began_ticks);
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

double spread_rank(double *v, unsigned n, double rank)
{
	qsort(v, n, sizeof(*v), by_size);
	return v[(unsigned)(rank * (n - 1))];
}

void spread_tell(const char *name, double *v, unsigned n, double unit)
{
	static const struct {
		const char *name;
		double rank;
	} ranks[] = {{"median", 0.5}, {"p99", 0.99}, {"p999", 0.999}};
	double sum = 0;
	char line[64];

	for (unsigned i = 0; i < n; i++)
		sum += v[i];
	snprintf(line, sizeof(line), "%s_avg", name);
	figure(line, sum / n * unit);
	for (unsigned i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++) {
		snprintf(line, sizeof(line), "%s_%s", name, ranks[i].name);
		figure(line, spread_rank(v, n, ranks[i].rank) * unit);
	}
}
