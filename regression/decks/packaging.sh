#!/usr/bin/env bash
# shellcheck disable=SC2016  # words in single quotes are meant for other programs
# The files of packaging/ against what the build asks for, and cmake --install of this build into a folder.
#   packaging.sh WORK BUILD [CMAKE]
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$1 build=$2 cmake=${3:-cmake}
packaging=$root/packaging
rm -rf "$work"
mkdir -p "$work"

errors=0
fail() {
  echo "FAILED: $*" >&2
  errors=$((errors + 1))
}

# ---- the list for apt is the set-up's own, first choices
sed -n "/^needs='/,/^'/p" "$root/jobscripts/setup/debian.sh" | sed "1d;\$d" | sed -E 's/[| ].*//' | sort >"$work/needs"
grep -v '^#' "$packaging/debian-12-ubuntu-24.04.txt" | sort >"$work/listed"
[ -s "$work/needs" ] || fail "no packages were found in jobscripts/setup/debian.sh"
diff "$work/needs" "$work/listed" >&2 || fail "packaging/debian-12-ubuntu-24.04.txt is not what jobscripts/setup/debian.sh installs (above)"

# ---- libraries: what cluster.sh asks for is what Spack and EasyBuild are told
while IFS=: read -r _ name package; do
  grep -qE "depends_on\(\"${package}[@\"]" "$packaging/spack/package.py" || fail "spack/package.py does not depend on $package ($name)"
  lower=$(tr -d '_-' <<<"$package")
  tr -d '_-' <"$packaging/easybuild/Orthant-0.1.0-gompi-2024a.eb" | grep -qiE "\('$lower'," || fail "the easyconfig does not depend on $package ($name)"
done < <(sed -n "/<<'LIST'/,/^LIST/p" "$root/jobscripts/setup/cluster.sh" | sed '1d;$d')
grep -qF 'depends_on("hdf5@1.10:+mpi")' "$packaging/spack/package.py" || fail "spack/package.py does not ask for parallel HDF5"

# ---- one version everywhere
version=$(sed -nE 's/^project\(orthant VERSION ([0-9.]+).*/\1/p' "$root/CMakeLists.txt")
[ -n "$version" ] || fail "no version in CMakeLists.txt"
[ -e "$packaging/modulefile/$version.lua" ] || fail "no modulefile/$version.lua"
grep -qF "version(\"$version\"" "$packaging/spack/package.py" || fail "spack/package.py has no version $version"
compgen -G "$packaging/easybuild/Orthant-$version-*.eb" >"$work/easyconfigs" || fail "no easyconfig of version $version"

# ---- the container: steps that a shell can read, by the repository's own set-up
definition=$packaging/apptainer/orthant.def
awk '/^%/ { on = $1 == "%post" } on && !/^%/' "$definition" | sed 's/{{ [A-Z]* }}/word/g' >"$work/post.sh"
bash -n "$work/post.sh" || fail "apptainer/orthant.def: bash cannot read %post"
for step in 'bash jobscripts/setup/debian.sh' 'cmake --build build/image' 'cmake --install build/image --prefix /usr/local'; do
  grep -qF "$step" "$work/post.sh" || fail "apptainer/orthant.def does not $step"
done

# ---- syntax, where there is a reader
if command -v python3 >"$work/found"; then
  for file in "$packaging/spack/package.py" "$packaging"/easybuild/*.eb; do
    python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read(), sys.argv[1])' "$file" || fail "$file: not Python"
  done
else
  echo "no python3: the syntax of Spack's and EasyBuild's files is not looked at"
fi
luac=$(command -v luac || command -v luac5.4 || command -v luac5.3 || true)
if [ -n "$luac" ]; then
  "$luac" -p "$packaging/modulefile/$version.lua" || fail "modulefile/$version.lua: not Lua"
else
  echo "no luac: the modulefile's syntax is not looked at"
fi

# ---- an installation: whole, and it runs from where it is
prefix=$work/prefix
"$cmake" --install "$build" --prefix "$prefix" >"$work/install.log" || fail "cmake --install failed: $(tail -n 3 "$work/install.log")"
for file in bin/orthant share/orthant/input/quickstart.toml share/orthant/jobscripts/lib.sh include/orthant/error.hpp include/orthant/version.hpp; do
  [ -e "$prefix/$file" ] || fail "not installed: $file"
done
for file in liborthant_core.a cmake/Orthant/OrthantConfig.cmake; do
  compgen -G "$prefix/lib*/$file" >"$work/found" || compgen -G "$prefix/lib/*/$file" >"$work/found" || fail "not installed: $file"
done
"$prefix/bin/orthant" --version | grep -qF "$version" || fail "the installed program does not say that it is $version"
"$prefix/bin/orthant" plan "$prefix/share/orthant/input/gpt2-124m.toml" >"$work/plan" 2>&1 ||
  fail "the installed program does not plan an installed deck: $(tail -n 3 "$work/plan")"

if [ $errors != 0 ]; then exit 1; fi
rm -rf "$prefix"
echo "ok: packaging of $version"
