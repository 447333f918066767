#!/bin/sh
# Installs Debian's PostgreSQL for the tests of the ledger, where that is missing and allowed; never fails: without it
# those tests are skipped, and say so.
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 && exit 0
command -v initdb >/dev/null 2>&1 && exit 0
skipped() {
    echo "PostgreSQL is not installed and $1: the ledger will not be tested on it" >&2
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
echo "installing PostgreSQL for the tests of the ledger (once)"
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -qq >/dev/null 2>&1 || true
$as_root apt-get install -y -qq --no-install-recommends postgresql >/dev/null 2>&1 || skipped "apt-get could not install it"
