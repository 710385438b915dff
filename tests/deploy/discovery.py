"""The discovery component on the fleet: what it may read, who has a token, and a configuration that goes with it."""

import shutil
import tempfile
import unittest
from pathlib import Path

import kubernetes_validate
import yaml

import play
from manifests import KUSTOMIZE, ROOT, build, called, config_text, containers, of_kind, tap

VERSIONS = ("1.29", kubernetes_validate.latest_version())


def discovering(folder):
    """The fleet with the component and the configuration that deploy/README.md shows."""
    copy = Path(folder) / "kustomize"
    shutil.copytree(KUSTOMIZE, copy)
    page = (ROOT / "deploy" / "README.md").read_text()
    [shown] = [block.split("```", 1)[0] for block in page.split("```yaml\n") if block.startswith("# kvtap.yaml")]
    [kustomization] = [block.split("```", 1)[0] for block in page.split("```yaml\n") if block.startswith("# kustomization.yaml")]
    overlay = copy / "examples" / "discovered"
    overlay.mkdir()
    (overlay / "kvtap.yaml").write_text(shown)
    (overlay / "kustomization.yaml").write_text(kustomization)
    return build(overlay)


class Discovery(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            cls.manifests = discovering(folder)

    def test_each_object_is_valid_in_the_oldest_and_the_newest_version(self):
        for manifest in self.manifests:
            for version in VERSIONS:
                with self.subTest(kind=manifest["kind"], version=version):
                    kubernetes_validate.validate(manifest, version, strict=True)

    def test_it_may_read_pods_and_endpoint_slices_of_its_namespace_and_nothing_else(self):
        self.assertEqual(of_kind(self.manifests, "ClusterRole", "ClusterRoleBinding"), [])
        [role] = of_kind(self.manifests, "Role")
        rules = [(rule["apiGroups"], rule["resources"], rule["verbs"]) for rule in role["rules"]]
        reads = ["get", "list", "watch"]
        self.assertEqual(rules, [([""], ["pods"], reads), (["discovery.k8s.io"], ["endpointslices"], reads)])
        [binding] = of_kind(self.manifests, "RoleBinding")
        self.assertEqual((binding["roleRef"]["kind"], binding["roleRef"]["name"]), ("Role", role["metadata"]["name"]))
        account = tap(self.manifests)[0]["spec"]["serviceAccountName"]
        subjects = [(subject["kind"], subject["name"]) for subject in binding["subjects"]]
        self.assertEqual(subjects, [("ServiceAccount", account)])
        self.assertNotEqual(account, "default")

    def test_only_the_pod_that_asks_has_a_token(self):
        template, container = tap(self.manifests)
        self.assertIs(template["spec"]["automountServiceAccountToken"], True)
        account = called(self.manifests, "ServiceAccount", template["spec"]["serviceAccountName"])
        self.assertIs(account["automountServiceAccountToken"], False)
        # What the restricted standard asks for is as it was.
        self.assertEqual(container["securityContext"]["capabilities"], {"drop": ["ALL"]})
        self.assertEqual(len(containers(template)), 1)

    def test_the_api_server_can_be_reached_through_the_policies(self):
        policies = [policy["spec"] for policy in of_kind(self.manifests, "NetworkPolicy")]
        of_fleet = [spec for spec in policies if spec["podSelector"]["matchLabels"] == {"kvtap": "fleet"}]
        out = {port["port"] for spec in of_fleet for rule in spec.get("egress", []) for port in rule["ports"]}
        self.assertLessEqual({443, 6443}, out)

    def test_the_configuration_is_one_that_discovers_and_passes(self):
        text = config_text(self.manifests)
        self.assertIn("selector", yaml.safe_load(text)["discovery"])
        done = play.check_config(text)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
