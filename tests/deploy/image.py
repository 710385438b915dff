"""The Dockerfile: read, since no container engine can be counted on; and what it may build from, tried."""

import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from manifests import EXAMPLES, ROOT, config_text, example, tap


class Image(unittest.TestCase):
    CARGO = "cargo"

    def setUp(self):
        lines = (ROOT / "Dockerfile").read_text().splitlines()
        self.steps = [tuple(line.split(maxsplit=1)) for line in lines if line and line[0] not in "# "]

    def all(self, name):
        return [rest for step, rest in self.steps if step == name]

    def test_the_image_runs_what_the_manifests_start(self):
        self.assertEqual(self.all("ENTRYPOINT"), ['["/usr/local/bin/kvtap"]'])
        self.assertEqual(self.all("USER"), ["65532:65532"])
        for name in EXAMPLES:
            container = tap(example(name))[1]
            self.assertNotIn("command", container)
            declared = {port["containerPort"] for port in container["ports"]}
            self.assertEqual({int(port) for port in self.all("EXPOSE")[0].split()}, declared)
            user, group = (container["securityContext"][key] for key in ("runAsUser", "runAsGroup"))
            self.assertEqual(self.all("USER"), [f"{user}:{group}"])
            self.assertTrue(config_text(example(name)))

    def test_nothing_is_fetched_outside_registries_and_the_lock_file_rules(self):
        run = self.all("RUN")
        self.assertEqual(len(run), 1)
        self.assertIn("--locked", run[0])
        self.assertNotRegex("\n".join(run), r"curl|wget|git |apt|https?://")
        self.assertEqual(self.all("ADD"), [])
        images = [image.partition("=")[2] for image in self.all("ARG")]
        for image in images:
            self.assertRegex(image, r"^[a-z0-9./-]+:[a-z0-9.-]+$")
            self.assertNotIn("latest", image)

    def test_the_toolchain_is_the_one_the_crate_asks_for(self):
        wanted = re.search(r'^rust-version = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.M).group(1)
        self.assertIn(f"RUST_IMAGE=rust:{wanted}-bookworm", self.all("ARG"))

    def test_the_build_gets_all_the_files_cargo_needs(self):
        ignore = (ROOT / ".dockerignore").read_text().splitlines()
        ignore = [line for line in ignore if line and not line.startswith("#")]
        self.assertEqual(ignore[0], "*")
        needed = {"!Cargo.toml", "!Cargo.lock", "!LICENSE", "!build.rs", "!proto", "!src"}
        self.assertLessEqual(needed, set(ignore))
        with tempfile.TemporaryDirectory() as folder:
            for line in ignore[1:]:
                source, target = ROOT / line.removeprefix("!"), Path(folder) / line.removeprefix("!")
                if source.is_dir():
                    shutil.copytree(source, target)
                elif source.exists():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(source, target)
            command = [self.CARGO, "metadata", "--locked", "--offline", "--no-deps", "--format-version=1"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
            # Files that are compiled in lie in what was copied too.
            for file in Path(folder).rglob("*.rs"):
                for name in re.findall(r'include_(?:str|bytes)!\("([^"]+)"\)', file.read_text()):
                    self.assertTrue((file.parent / name).exists(), f"{file} includes {name}")
