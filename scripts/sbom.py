"""Prints a software bill of materials in CycloneDX 1.5 (JSON), made from components.json, a file that each build writes into its folder.

    python3 scripts/sbom.py COMPONENTS.JSON [--commit HASH] [--time SECONDS] [--static-runtime]

--static-runtime: libstdc++ is linked statically, as in the wheels of scripts/wheels. The same arguments give the same bytes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import uuid
from pathlib import Path
from typing import Any

# Name in components.json -> SPDX expression of the licence, and web page. A component that is not listed here is an error: a person must read its licence and add it.
KNOWN: dict[str, tuple[str, str]] = {
    "nlohmann_json": ("MIT", "https://github.com/nlohmann/json"),
    "CLI11": ("BSD-3-Clause", "https://github.com/CLIUtils/CLI11"),
    "utf8proc": ("MIT AND Unicode-DFS-2015", "https://github.com/JuliaStrings/utf8proc"),
    "oniguruma": ("BSD-2-Clause", "https://github.com/kkos/oniguruma"),
    "libzip": ("BSD-3-Clause", "https://libzip.org"),
    "libpng": ("libpng-2.0", "http://www.libpng.org"),
    "libjpeg": ("IJG AND BSD-3-Clause AND Zlib", "https://libjpeg-turbo.org"),
    "nanobind": ("BSD-3-Clause AND MIT", "https://github.com/wjakob/nanobind"),  # MIT is the licence of tsl::robin_map, which nanobind contains
    "onnxruntime": ("MIT", "https://onnxruntime.ai"),
    "MPI": ("BSD-3-Clause", "https://www.mpi-forum.org"),  # the licence of Open MPI; other implementations of MPI may have another licence
    "libstdc++": ("GPL-3.0-or-later WITH GCC-exception-3.1", "https://gcc.gnu.org"),
}


def component(name: str, version: str | None, linked: str) -> dict[str, Any]:
    if name not in KNOWN:
        raise SystemExit(f"scripts/sbom.py does not know the licence of {name}")
    expression, page = KNOWN[name]
    purl = f"pkg:generic/{name.replace('+', '%2B')}" + (f"@{version}" if version else "")
    result: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": name, "licenses": [{"expression": expression}], "purl": purl, "externalReferences": [{"type": "website", "url": page}]}
    if version:
        result["version"] = version
    result["scope"] = "required"
    result["properties"] = [{"name": "polyhead:linked", "value": linked}]
    return result


def bill(told: dict[str, Any], commit: str, time: int, static_runtime: bool) -> dict[str, Any]:
    version = told["version"]
    parts = [component(one["name"], one["version"], one["linked"]) for one in told["components"]]
    if static_runtime:
        parts.append(component("libstdc++", told["compiler"]["version"] if told["compiler"]["name"] == "GNU" else None, "archive"))
    parts.sort(key=lambda one: one["bom-ref"])
    own = f"pkg:pypi/polyhead@{version}"
    main: dict[str, Any] = {"type": "library", "bom-ref": own, "name": "polyhead", "version": version, "licenses": [{"license": {"id": "MIT"}}], "purl": own}
    if commit:
        main["properties"] = [{"name": "polyhead:commit", "value": commit}]
    compiler = {"name": told["compiler"]["name"], "version": told["compiler"]["version"]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([told, commit, static_runtime], sort_keys=True))}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.datetime.fromtimestamp(time, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "tools": {"components": [{"type": "application", **compiler}]},
            "component": main,
        },
        "components": parts,
        "dependencies": [{"ref": own, "dependsOn": [one["bom-ref"] for one in parts]}, *({"ref": one["bom-ref"]} for one in parts)],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("components", type=Path)
    parser.add_argument("--commit", default="")
    parser.add_argument("--time", type=int, default=0)
    parser.add_argument("--static-runtime", action="store_true")
    given = parser.parse_args()
    print(json.dumps(bill(json.loads(given.components.read_text()), given.commit, given.time, given.static_runtime), indent=2))


if __name__ == "__main__":
    main()
