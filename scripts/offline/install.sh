#!/bin/sh
# Linux and macOS: sh install.sh [FOLDER]. Finds a Python that the wheels are for.
here=$(CDPATH= cd "$(dirname "$0")" && pwd) || exit 1
for python in "${PYTHON:-python3}" python3 python3.11 python3.12 python3.13 python3.14 python; do
    if "$python" "$here/install.py" --fits >/dev/null 2>&1; then
        exec "$python" "$here/install.py" "$@"
    fi
done
for python in python3 python; do  # none fits: let one say why
    if command -v "$python" >/dev/null 2>&1; then
        exec "$python" "$here/install.py" "$@"
    fi
done
echo "install: there is no Python here; README.txt names the version to install" >&2
exit 1
