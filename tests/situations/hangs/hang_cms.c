#include "hang.h"

const struct hang cms[] = {{0}};
