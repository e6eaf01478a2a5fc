"""What logind does when the last session of a user ends (clean_ipc_by_uid): all in /dev/shm goes.

systemd's own function is static in libsystemd-shared; where that library exports it, it is called.
"""

import ctypes
import pwd
import shutil
import sys
from pathlib import Path


def main() -> None:
    uid = pwd.getpwnam(sys.argv[1]).pw_uid
    for path in sorted(Path("/usr/lib").glob("*/systemd/libsystemd-shared-*.so")):
        function = getattr(ctypes.CDLL(str(path)), "clean_ipc_by_uid", None)
        if function is not None:
            sys.exit(1 if function(uid) < 0 else 0)
    for path in Path("/dev/shm").iterdir():  # noqa: S108  # what logind empties
        if path.lstat().st_uid == uid:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()


if __name__ == "__main__":
    main()
