#include "hang.h"

const struct hang datagrams[] = {{0}};
