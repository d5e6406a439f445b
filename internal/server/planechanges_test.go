package server

import (
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/settings"
)

// FL-01: the check of the settings rejects a mapping that could give two objects one key, before the plane serves anything.
func TestStacksAreChecked(t *testing.T) {
	for key, good := range map[string]bool{"{name_}_max": true, "runner_sets.{name}.max": true, "max": false, "runner_sets[0]": false} {
		g := settings.GitOps{Repository: "acme/fleet", Format: settings.FormatTfvars, Stacks: []settings.Stack{{Path: "a.tfvars", Keys: map[string]map[string]string{"RunnerPool": {"scaling.max": key}}}}}
		err := checkPlane(settings.File{Plane: settings.Plane{Identity: settings.PlaneIdentity{Mode: settings.Whois}, GitOps: g}})
		if good != (err == nil) || !good && !strings.Contains(err.Error(), "plane.gitops.stacks") {
			t.Errorf("%s: %v", key, err)
		}
	}
}
