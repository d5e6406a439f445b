package settings_test

import (
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/settings"
)

func TestFleet(t *testing.T) {
	for _, x := range []struct{ why, file, says string }{
		{"all defaults", "", ""},
		{"everything", "fleet: {namespace: ci, sharedNamespace: runners, arcNamespace: arc, approval: plane, approvers: [pat@platform.dev], clusterCIDRs: [10.0.0.0/14, \"fd00::/48\"], " +
			"apiServers: [\"10.0.0.1:443\", \"[fd00::1]:6443\"], cacheNamespaces: [cache], requireOwnApp: true, truthCheckEvery: 10m, images: {runner: \"a@sha256:0\", docker: b, manager: c, helper: d, job: e}}", ""},
		{"unknown", "fleet: {writers: [x]}", "field writers is not a setting of fleet"},
		{"unknown image", "fleet: {images: {runners: x}}", "field runners is not a setting of fleet.images"},
		{"namespace", "fleet: {namespace: \"a/b\"}", "fleet.namespace"},
		{"shared namespace", "fleet: {sharedNamespace: \"\"}", "fleet.sharedNamespace"},
		{"ARC's namespace", "fleet: {arcNamespace: A}", "fleet.arcNamespace"},
		{"jobs in the namespace of credentials", "fleet: {sharedNamespace: tailplane-fleet}", "must be three different namespaces"},
		{"credentials in the namespace of ARC", "fleet: {arcNamespace: tailplane-fleet}", "must be three different namespaces"},
		{"an organisation's", "fleet: {sharedNamespace: tailplane-org-acme}", "prefix of namespaces of organisations"},
		{"approval", "fleet: {approval: nobody}", "neither git nor plane"},
		{"an approver that is none", "fleet: {approvers: [\"\"]}", "fleet.approvers"},
		{"everybody", "fleet: {approvers: [\"*@acme.dev\"]}", "list each login"},
		{"a range", "fleet: {clusterCIDRs: [10.0.0.1/8]}", "fleet.clusterCIDRs"},
		{"no range", "fleet: {clusterCIDRs: [here]}", "fleet.clusterCIDRs"},
		{"every address", "fleet: {clusterCIDRs: [0.0.0.0/0]}", "the whole address range"},
		{"a name", "fleet: {apiServers: [\"kubernetes.default:443\"]}", "fleet.apiServers"},
		{"no port", "fleet: {apiServers: [10.0.0.1]}", "fleet.apiServers"},
		{"no namespace", "fleet: {cacheNamespaces: [\"*\"]}", "fleet.cacheNamespaces"},
		{"a cache among the credentials", "fleet: {cacheNamespaces: [tailplane-fleet]}", "jobs must not connect"},
		{"an image", "fleet: {images: {job: \"a b\"}}", "fleet.images.job"},
		{"truth", "fleet: {requireOwnApp: maybe}", "as true or false"},
		{"too often", "fleet: {truthCheckEvery: 10s}", "fleet.truthCheckEvery"},
		{"never", "fleet: {truthCheckEvery: 0s}", "fleet.truthCheckEvery"},
		{"probes", "health: nowhere", "health"},
	} {
		f, err := settings.Parse([]byte(x.file))
		if err == nil {
			err = f.Validate(settings.FleetRole)
		}
		if x.says == "" && err != nil || x.says != "" && (err == nil || !strings.Contains(err.Error(), x.says)) {
			t.Errorf("%s: %v, want %q", x.why, err, x.says)
		}
		if x.why == "everything" {
			p, s := f.Fleet.Prefixes(), f.Fleet.Servers()
			switch {
			case len(p) != 2:
				t.Errorf("len(p) = %v, want 2", len(p))
			case p[0].String() != "10.0.0.0/14":
				t.Errorf("p[0].String() = %q, want %q", p[0].String(), "10.0.0.0/14")
			case len(s) != 2:
				t.Errorf("len(s) = %v, want 2", len(s))
			case s[1].Port() != 6443:
				t.Errorf("s[1].Port() = %v, want 6443", s[1].Port())
			case !f.Fleet.Approver("pat@platform.dev"):
				t.Errorf(`f.Fleet.Approver("pat@platform.dev") is false; %v, %v, %+v`, p, s, f.Fleet)
			case f.Fleet.Approver("amy@acme.dev"):
				t.Errorf(`f.Fleet.Approver("amy@acme.dev") is true; %v, %v, %+v`, p, s, f.Fleet)
			}
		}
		if x.why == "all defaults" && !f.Fleet.Approver("amy@acme.dev") {
			t.Error("with no approvers, the plane's word does not count")
		}
	}
}
