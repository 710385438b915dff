#!/usr/bin/env bash
# Sees to it that the programs which the checks of deploy/ and of the status page run are there: a Chromium, openssl, and
# Prometheus with its promtool. Debian and Ubuntu have all; elsewhere, or without the rights to install, it says what is missing.
set -euo pipefail

missing=()
if [ -z "${KVTAP_CHROMIUM:-}" ] && ! command -v chromium chromium-browser google-chrome google-chrome-stable >/dev/null; then
    missing+=(chromium)
fi
command -v openssl >/dev/null || missing+=(openssl)
command -v prometheus >/dev/null && command -v promtool >/dev/null || missing+=(prometheus)
[ ${#missing[@]} = 0 ] && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "setup: installing ${missing[*]}" >&2
    apt-get -o Acquire::Retries=3 update -qq
    DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=3 install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
else
    echo "setup: install ${missing[*]} (Debian, Ubuntu: apt-get install ${missing[*]})" >&2
    exit 1
fi
