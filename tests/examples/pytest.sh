#!/bin/bash
# examples/pytest works as its first lines say.   pytest.sh BUILD
set -eu
build=$(realpath "$1") source=$(realpath "${BASH_SOURCE[0]%/*}/../..")
/usr/bin/python3 -c "import pytest" 2>/dev/null || { echo "SKIP: no pytest here (scripts/deps test)"; exit 77; }
PATH=$build:$PATH PYTHONDONTWRITEBYTECODE=1 exec /usr/bin/python3 -m pytest -p no:cacheprovider -v "$source/examples/pytest"
