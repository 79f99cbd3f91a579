# Orthant for Spack (1.0 and newer). To use it, see ../README.md.
from spack_repo.builtin.build_systems.cmake import CMakePackage, generator
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Orthant(CMakePackage, CudaPackage):
    """Trains transformer language models on supercomputers: one C++ program over MPI whose ranks form a Cartesian mesh,
    with an axis for every way to cut the work."""

    homepage = "https://github.com/orthant/orthant"
    git = "https://github.com/orthant/orthant.git"

    license("BSD-3-Clause")

    version("main", branch="main")
    version("0.1.0", tag="v0.1.0")

    variant("native", default=False, description="Tune for the machine that compiles, instead of for Spack's target")
    variant("tests", default=False, description="Build the regression suite, which spack install --test=root runs")

    # Spack's compiler wrappers add -march of the target: +native is for builds outside of its targets
    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.24:", type="build")
    generator("ninja")

    # MPI is no variant: there is no Orthant without
    depends_on("mpi@3.1:")
    depends_on("hdf5@1.10:+mpi")
    depends_on("onednn@2.6:")
    depends_on("tomlplusplus")
    depends_on("cli11")
    depends_on("nlohmann-json@3.9:")
    depends_on("fmt@9:")
    depends_on("spdlog")
    depends_on("xxhash")
    depends_on("libpng")
    depends_on("googletest", type="build", when="+tests")

    requires("%gcc@11:", "%clang@14:", "%cce", "%oneapi", policy="any_of", msg="Orthant is written in C++20")
    # --help shows cuda and cuda_arch, so that scripts can ask for them; this version has no CUDA backend to build
    conflicts("+cuda", msg="this version of Orthant computes on CPUs only")

    def cmake_args(self):
        run_tests = self.run_tests or self.spec.satisfies("+tests")
        args = [
            self.define_from_variant("ORTHANT_NATIVE", "native"),
            self.define("BUILD_TESTING", run_tests),
            self.define("CMAKE_CXX_COMPILER", self.spec["mpi"].mpicxx),
        ]
        # icpx is fast and loose by default, and the same expression has to give the same bits everywhere
        if self.spec.satisfies("%oneapi"):
            args.append(self.define("CMAKE_CXX_FLAGS", "-fp-model=precise"))
        return args

    def check(self):
        with working_dir(self.build_directory):
            Executable("ctest")("-L", "smoke", "--output-on-failure")

    def setup_run_environment(self, env):
        # job scripts and decks that were installed beside the program: see jobscripts/README.md
        env.set("ORTHANT_HOME", self.prefix.share.orthant)
        env.set("ORTHANT_PROGRAM", self.prefix.bin.orthant)

    def test_version(self):
        """the installed program starts and knows its version"""
        out = Executable(self.prefix.bin.orthant)("--version", output=str.split, error=str.split)
        assert "orthant" in out.lower()

    def test_plan(self):
        """the installed deck is read, checked and planned; no launcher is needed for that"""
        deck = join_path(self.prefix.share.orthant, "input", "gpt2-124m.toml")
        Executable(self.prefix.bin.orthant)("plan", deck)
