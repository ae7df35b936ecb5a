"""Package sources of trixie are made from whatever sources the machine has, and from Debian's own only."""

from deploy.local.debian import entries, other_suite, wanted

RING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SOURCES = """\
Types: deb deb-src
# a comment in between
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
 bookworm-backports
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: https://vendor.example/linux/debian
Suites: bookworm
Components: main
Signed-By: /etc/apt/keyrings/vendor.asc

Enabled: no
Types: deb
URIs: http://old.example/debian
Suites: bookworm
Components: main
"""
LIST = """\
# deb http://commented.example/debian bookworm main
deb http://mirror.example/debian bookworm main contrib # the near one
deb-src http://mirror.example/debian bookworm main
deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://second.example/debian/ bookworm main
deb [arch=amd64 signed-by=/etc/apt/keyrings/vendor.gpg] https://vendor.example/debian bookworm main
deb [trusted=yes] file:/srv/mirror bookworm main
deb https://vendor.example/apt bookworm-pgdg main
deb https://vendor.example/apt bookworm stable
deb http://broken.example
"""


def of(files: dict[str, str], codename: str = "bookworm") -> list[str]:
    return other_suite(entries(files), codename, RING).splitlines()


def test_paragraphs_are_read_with_their_continuations_and_what_is_not_debian_is_left_out() -> None:
    assert of({"debian.sources": SOURCES}) == [
        f"deb [signed-by={RING}] http://mirror.example/debian trixie main",
        f"deb [signed-by={RING}] http://mirror.example/debian trixie-updates main",
        f"deb [signed-by={RING}] http://mirror.example/debian-security trixie-security main",
    ]


def test_lines_are_read_with_their_options() -> None:
    assert of({"sources.list": LIST}) == [
        f"deb [signed-by={RING}] http://mirror.example/debian trixie main",
        f"deb [signed-by={RING}] http://second.example/debian/ trixie main",
        f"deb [signed-by={RING} trusted=yes] file:/srv/mirror trixie main",
    ]


def test_the_same_source_in_two_files_is_named_once() -> None:
    line = "deb http://mirror.example/debian bookworm main\n"
    assert len(of({"a.list": line, "b.list": line})) == 1


def test_trixie_itself_and_rolling_suites_serve_as_well() -> None:
    for suite, codename in (("trixie", "trixie"), ("stable", "trixie"), ("sid", ""), ("testing", "forky")):
        found = of({"sources.list": f"deb http://mirror.example/debian {suite} main\n"}, codename)
        assert found == [f"deb [signed-by={RING}] http://mirror.example/debian trixie main"]


def test_files_that_apt_ignores_are_ignored() -> None:
    assert of({"debian.sources.save": SOURCES, "old.list.disabled": LIST}) == []


def test_a_key_inside_the_paragraph_is_not_debians() -> None:
    embedded = "Types: deb\nURIs: http://v.example/d\nSuites: bookworm\nComponents: main\nSigned-By:\n -----BEGIN\n .\n"
    assert of({"v.sources": embedded}) == []


def test_libraries_and_postgresql_are_unpacked_and_scripts_are_not() -> None:
    names = "libc6 perl-base libperl5.40 zlib1g libllvm19 libz3-4 postgresql-common libpq5 postgresql-17 adduser"
    simulation = "Reading lists...\n" + "".join(f"Inst {name} (1 Debian:13 [amd64])\n" for name in names.split())
    assert wanted(simulation) == ["libc6", "zlib1g", "libpq5", "postgresql-17"]
