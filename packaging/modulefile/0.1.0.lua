-- Lmod: Orthant 0.1.0. Copy to <a folder of MODULEPATH>/orthant/0.1.0.lua and change the next two lines.
local prefix = "/opt/orthant/0.1.0"            -- what cmake --install was given as --prefix
local needs = { "openmpi", "hdf5" }             -- the modules that it was built with

help([[
Orthant trains transformer language models on supercomputers: one program, launched by srun or mpirun.
  orthant --help             commands
  orthant help deck          every key of a deck
  $ORTHANT_HOME/input        decks to begin with
  $ORTHANT_HOME/jobscripts   scripts for queues
]])
whatis("Name: orthant")
whatis("Version: " .. myModuleVersion())
whatis("Description: trains transformer language models over MPI")
whatis("Category: artificial intelligence")

conflict("orthant")
for _, name in ipairs(needs) do
  depends_on(name)
end
prepend_path("PATH", pathJoin(prefix, "bin"))
prepend_path("CMAKE_PREFIX_PATH", prefix)
setenv("ORTHANT_HOME", pathJoin(prefix, "share/orthant"))
setenv("ORTHANT_PROGRAM", pathJoin(prefix, "bin/orthant"))
