# Writes the header OUT with the commit of the tree SOURCE, for `verbena --version`.  A header that is right is left alone.
# A tree without .git (an archive, a package's source) tells its commit in cmake/commit.txt.
cmake_minimum_required(VERSION 3.20)
set(commit "")
if(EXISTS ${SOURCE}/.git)
  execute_process(COMMAND git --no-optional-locks -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
                  OUTPUT_VARIABLE commit ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
else()
  file(STRINGS ${SOURCE}/cmake/commit.txt commit LIMIT_COUNT 1)
endif()
if(NOT commit MATCHES "^[0-9a-f]+(-dirty)?$")
  set(commit "")
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "#define VB_COMMIT \"@commit@\"\n" @ONLY)
