#include "hang.h"

const struct hang rights[] = {{0}};
