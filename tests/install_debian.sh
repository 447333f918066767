#!/bin/sh
# install_debian.sh PACKAGE FOR PROGRAM...: installs a package of Debian's for some tests, where none of its programs (names,
# or patterns of paths) is there and installing is allowed. Never fails: without it those tests are skipped, and say so.
package=$1 tested=$2
shift 2
for program in "$@"; do
    case $program in
    /*) ls $program >/dev/null 2>&1 && exit 0 ;;
    *) command -v "$program" >/dev/null 2>&1 && exit 0 ;;
    esac
done
skipped() {
    echo "$package is not installed and $1: $tested will be skipped" >&2
    exit 0
}
command -v apt-get >/dev/null 2>&1 || skipped "there is no apt-get to install it with"
if [ "$(id -u)" -eq 0 ]; then
    as_root=""
elif sudo -n true 2>/dev/null; then
    as_root="sudo -n"
else
    skipped "installing it needs root"
fi
echo "installing $package for $tested (once)"
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -qq >/dev/null 2>&1 || true
$as_root apt-get install -y -qq --no-install-recommends "$package" >/dev/null 2>&1 || skipped "apt-get could not install it"
