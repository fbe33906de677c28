"""Rules about the code itself: who imports whom, who reads environment, clock and chance, and size."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "schemas",
    "stores",
    "tables",
    "lua",
    "streams",
    "gateway",
    "clients",
    "ops",
    "bench",
)

# What each package may import of ours, besides itself.
MAY_IMPORT: dict[str, set[str]] = {
    "schemas": set(),
    "lua": {"schemas"},
    "stores": {"schemas", "lua"},
    "tables": {"schemas"},
    "streams": {"schemas", "lua", "stores", "tables"},
    "gateway": {"schemas", "lua", "stores"},
    "clients": {"schemas"},
    "ops": set(PACKAGES) | {"qim"},
    "bench": set(PACKAGES) | {"qim"},
    "qim": {"schemas", "lua", "stores", "tables", "streams"},
}

# Where the environment may be read: the settings, and what runs before they can be imported.
READS_ENVIRONMENT = {"schemas/config.py", "ops/servers/provision.py"}

# A replayed record must give identical bytes, so nothing on this path knows the time or chance.
CLOCK_AND_CHANCE = {"time", "datetime", "random", "secrets", "uuid"}
# Durations of waiting (time.monotonic) do not reach a record and are judged call by call.
HARMLESS_CALLS = {"monotonic", "sleep", "perf_counter"}

MAX_LINES = 330
FORBIDDEN_WORDS = re.compile(
    "|".join(
        (
            "exactly" + "[- ]once",
            r"\bTO" + r"DO\b",
            r"\bFIX" + r"ME\b",
            "NotImplemented" + "Error",
            r"pytest\.(mark\.)?" + "(skip|xfail)",
        )
    ),
    re.IGNORECASE,
)
TEXT_SUFFIXES = {".py", ".lua", ".md", ".toml", ".yaml", ".avsc"}


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def modules() -> list[Path]:
    own = [ROOT / "qim.py"] if (ROOT / "qim.py").exists() else []
    return [*sources(*PACKAGES), *own]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def package_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Names of the top-level packages that a module imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_imports_point_one_way(path: Path) -> None:
    package = package_of(path)
    ours = imported(path) & {*PACKAGES, "qim", "tests"}
    assert ours - MAY_IMPORT[package] - {package} == set()


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_every_module_lists_its_exports(path: Path) -> None:
    tree = ast.parse(path.read_text())
    targets = [
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    ]
    assert ast.get_docstring(tree)
    assert targets.count("__all__") == 1 or len(tree.body) == 1


def test_the_environment_is_read_in_one_place() -> None:
    reading = {
        name_of(path)
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv", "environb"}
    }
    assert reading - READS_ENVIRONMENT == set()


@pytest.mark.parametrize("path", list(sources("streams", "tables")), ids=name_of)
def test_the_materialize_path_knows_no_clock_and_no_chance(path: Path) -> None:
    calls = {
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in CLOCK_AND_CHANCE
        and node.attr not in HARMLESS_CALLS
    }
    assert calls == set()
    imports_names = {
        alias.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module in CLOCK_AND_CHANCE
        for alias in node.names
    }
    assert imports_names - HARMLESS_CALLS == set()


def test_no_file_is_a_god_file() -> None:
    long = {
        name_of(path): lines
        for path in [*modules(), *sources("tests")]
        if (lines := len(path.read_text().splitlines())) > MAX_LINES
    }
    assert long == {}


def texts() -> Iterator[Path]:
    for folder in (*PACKAGES, "tests", "docs"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in TEXT_SUFFIXES:
                yield path
    yield from (path for path in sorted(ROOT.glob("*")) if path.suffix in TEXT_SUFFIXES)


def test_no_word_that_we_do_not_write() -> None:
    found = [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in texts()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if FORBIDDEN_WORDS.search(line)
    ]
    assert found == []


def test_contract_marks_name_items_of_the_right_form() -> None:
    form = re.compile(r"[A-Z][A-Z0-9]*-M?\d+[a-z]?")
    wrong = [
        f"{name_of(path)}:{node.lineno}"
        for path in sources("tests")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "contract"
        and not all(
            isinstance(arg, ast.Constant) and form.fullmatch(str(arg.value)) for arg in node.args
        )
    ]
    assert wrong == []
